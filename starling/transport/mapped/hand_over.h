// How one worker hands its memory to another on the same host: over Unix sockets in the abstract name space, which is the
// network namespace's own. So who can reach a worker's door is on its host, also where hosts are emulated by namespaces.
//
//   door   where a worker takes memory. Its name, and a nonce, are told to one peer over the proven TCP connection
//   tie    the connection through that door: memory goes to the reader, word of what it has let go comes back. It ends
//          with the reader's process, at the latest, in whatever way that ends
//
// Both ends ask the kernel for the other's user, and refuse another than their own. Who comes through the door must know
// the nonce that this very peer was told. Nothing here waits. On the transport's thread, except where stated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <sys/types.h>

#include "starling/core/descriptor.h"
#include "starling/transport/tcp/proof.h"

namespace starling::mapped {

using tcp::Nonce;

// What a peer needs to come through my door.
struct Invitation {
  static constexpr std::size_t kBytes = 64;
  Nonce door{};   // names it
  Nonce nonce{};  // fresh for every connection
};

// --- the reader ---

class Door {
 public:
  // user: whose processes may come. Throws Error.
  explicit Door(uid_t user);
  const Nonce& name() const { return name_; }

  struct Caller {
    Descriptor tie;
    Nonce nonce{};  // what it said
  };
  // Who has come since, of this user, and has said its nonce. An honest caller has before it tells me that it is here; another
  // one may be between the two, and is waited for.
  std::vector<Caller> callers();

 private:
  Nonce name_;
  uid_t user_;
  Descriptor socket_;
  std::vector<Descriptor> silent_;  // callers that have said nothing yet
};

struct Segment {
  std::uint32_t number = 0;
  Descriptor memory;
};
// The next one that has come through the tie; nothing where none has.
std::optional<Segment> take_segment(const Descriptor& tie);
// False where the tie takes nothing at this moment. On any thread.
bool say_released(const Descriptor& tie, std::uint64_t lease);
// For the other end; the descriptor may live on in a forked process.
void end_tie(const Descriptor& tie);

// --- the maker ---

// A tie through the door of a peer; nothing, and why, where it is not on this host or another user's.
std::optional<Descriptor> call(const Invitation& invitation, uid_t user, std::string& why);
// False where the tie takes nothing at this moment, or has ended.
bool give_segment(const Descriptor& tie, std::uint32_t number, int memory);

enum class Quiet { nothing_yet, ended };
// The next lease that the reader has let go. On any thread.
std::variant<std::uint64_t, Quiet> hear_released(const Descriptor& tie);

}  // namespace starling::mapped
