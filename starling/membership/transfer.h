// One worker's state, from a member to a newcomer: over an authenticated connection of their own,
// beside the member's training, checked by a hash, without a disk. The connection stays until the
// newcomer is a member, so that its death is seen at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "starling/checkpoint/memory_file.h"
#include "starling/world/world.h"

namespace starling {

// At the member: sends the file's content until the newcomer has read it, in the background.
class Donation {
 public:
  // `channel`: of these two workers alone. `state`: nobody changes it; several donations may share
  // it. `hash`: the content's CRC32C. `changed` is called on a thread of the donation, when the
  // newcomer has read the state, and when it goes.
  Donation(const World& world, const std::string& channel, int to, std::shared_ptr<MemoryFile> state,
           std::uint32_t hash, std::function<void()> changed);
  ~Donation();  // ends it
  int to() const;
  // The newcomer has read the state, and is still there.
  bool is_taken() const;
  bool is_over() const;  // the newcomer is gone

 private:
  struct Sender;
  const std::unique_ptr<Sender> sender_;
};

// At the newcomer.
class Receipt {
 public:
  // Gets the state of `from`, of at most so many bytes, in the background.
  Receipt(const World& world, const std::string& channel, int from, std::size_t most);
  ~Receipt();  // ends the connection
  // Blocks until it has come. Throws Error if that takes longer than `patience`, if interrupted, if
  // `from` is gone or sends too much, or if it is connected and stands still for timeouts.silent.
  void wait(std::chrono::milliseconds patience);
  MemoryFile& state();
  // Tells the donor that this worker has read it, and can be a member.
  void accept();
  bool is_connected() const;  // the donor is still there

 private:
  struct Receiver;
  const std::unique_ptr<Receiver> receiver_;
};

}  // namespace starling
