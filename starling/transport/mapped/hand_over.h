// Hands one worker's memory to another on the same host, over Unix sockets in the abstract name
// space. This name space belongs to the network namespace. A worker that reaches another's door is
// therefore on its host, also where namespaces emulate hosts.
//
//   door   where a worker takes memory. Its name and a nonce are told to one peer over the proven
//          TCP connection
//   tie    the connection through that door. Memory goes to the reader; the releases come back. It
//          ends with the reader's process at the latest, in whatever way that ends
//
// Both ends ask the kernel for the other's user, and refuse any user but their own. A caller at the
// door must know the nonce that this very peer was told. Nothing here blocks. All runs on the
// transport's thread, except where stated.
#pragma once

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

// The data that a peer needs to connect to my door.
struct Invitation {
  static constexpr std::size_t kBytes = 64;
  Nonce door{};   // its name
  Nonce nonce{};  // fresh for every connection
};

// --- the reader ---

class Door {
 public:
  // `user`: only its processes may connect. Throws Error.
  explicit Door(uid_t user);
  const Nonce& name() const { return name_; }

  struct Caller {
    Descriptor tie;
    Nonce nonce{};  // that the caller sent
  };
  // The callers of this user since the last call that have sent their nonce. An honest caller sends
  // it before it announces itself to me. Other callers may be between the two; they are waited for.
  std::vector<Caller> callers();

 private:
  Nonce name_;
  uid_t user_;
  Descriptor socket_;
  std::vector<Descriptor> silent_;  // callers that have sent nothing yet
};

struct Region {
  std::uint32_t number = 0;
  Descriptor memory;
};
// The next region from the tie; nothing if none has come.
std::optional<Region> take_region(const Descriptor& tie);
// False if the tie is full at this moment. On any thread.
bool say_released(const Descriptor& tie, std::uint64_t lease);
// Ends the tie for the other end too, even if the descriptor lives on in a forked process.
void end_tie(const Descriptor& tie);

// --- the maker ---

// A tie through a peer's door. Nothing, with the reason, if the peer is on another host or of
// another user.
std::optional<Descriptor> call(const Invitation& invitation, uid_t user, std::string& why);
// False if the tie is full at this moment, or has ended.
bool give_region(const Descriptor& tie, std::uint32_t number, int memory);

enum class Quiet { nothing_yet, ended };
// The next lease that the reader has released. On any thread.
std::variant<std::uint64_t, Quiet> hear_released(const Descriptor& tie);

}  // namespace starling::mapped
