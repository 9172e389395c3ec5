#include "starling/transport/mapped/hand_over.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "starling/core/error.h"

namespace starling::mapped {
namespace {

constexpr std::size_t kMostCallers = 256;  // at once: strangers could connect for ever

Descriptor open_socket() {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

struct Address {
  explicit Address(const Nonce& door) {
    std::string name = "starling-";
    for (const std::byte b : door) name += fmt::format("{:02x}", std::to_integer<unsigned>(b));
    at.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), at.sun_path + 1);  // the first byte is zero: abstract
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&at); }
  sockaddr_un at{};
  socklen_t length;
};

// Whether a process of this user made the other end.
bool is_of(const Descriptor& tie, uid_t user) {
  ucred other{};
  socklen_t size = sizeof other;
  return getsockopt(tie.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == user;
}

// One message with at most one descriptor.
struct Message {
  explicit Message(std::span<std::byte> bytes) : part{bytes.data(), bytes.size()} {
    head.msg_iov = &part;
    head.msg_iovlen = 1;
  }
  void attach(int fd) {
    head.msg_control = control;
    head.msg_controllen = CMSG_SPACE(sizeof fd);
    cmsghdr* const extra = CMSG_FIRSTHDR(&head);
    extra->cmsg_level = SOL_SOCKET;
    extra->cmsg_type = SCM_RIGHTS;
    extra->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(extra), &fd, sizeof fd);
  }
  bool send(const Descriptor& tie) {
    return sendmsg(tie.get(), &head, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(part.iov_len);
  }
  iovec part;
  msghdr head{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
};

template <class T>
std::span<std::byte> bytes_of_object(T& object) {
  return std::as_writable_bytes(std::span(&object, 1));
}

}  // namespace

Door::Door(uid_t user) : name_(tcp::Challenge::fresh().nonce), user_(user), socket_(open_socket()) {
  const Address address(name_);
  if (socket_.get() < 0 || bind(socket_.get(), address.get(), address.length) != 0 ||
      listen(socket_.get(), SOMAXCONN) != 0) {
    throw Error(fmt::format("mapped transport: no Unix socket to take memory at: {}", std::strerror(errno)));
  }
}

std::vector<Door::Caller> Door::callers() {
  for (std::size_t knocks = 0; knocks < kMostCallers; ++knocks) {
    Descriptor tie(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (tie.get() < 0) break;
    if (is_of(tie, user_)) silent_.push_back(std::move(tie));
  }
  std::vector<Caller> all;
  for (Descriptor& tie : std::exchange(silent_, {})) {
    Nonce nonce;
    const ssize_t said = recv(tie.get(), nonce.data(), nonce.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (said == static_cast<ssize_t>(nonce.size())) {
      all.push_back({std::move(tie), nonce});
    } else if (said < 0 && errno == EAGAIN && silent_.size() < kMostCallers) {
      silent_.push_back(std::move(tie));
    }
  }
  return all;
}

std::optional<Region> take_region(const Descriptor& tie) {
  Region region;
  Message message(bytes_of_object(region.number));
  message.head.msg_control = message.control;
  message.head.msg_controllen = CMSG_LEN(sizeof(int));  // at most one
  const ssize_t said = recvmsg(tie.get(), &message.head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  if (said < 0) return std::nullopt;
  const cmsghdr* const extra = CMSG_FIRSTHDR(&message.head);
  if (extra != nullptr && extra->cmsg_level == SOL_SOCKET && extra->cmsg_type == SCM_RIGHTS &&
      extra->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(extra), sizeof fd);
    region.memory = Descriptor(fd);
  }
  if (said != sizeof region.number) return std::nullopt;  // and the descriptor is closed
  return region;
}

bool say_released(const Descriptor& tie, std::uint64_t lease) {
  return Message(bytes_of_object(lease)).send(tie) || (errno != EAGAIN && errno != ENOBUFS);
}

void end_tie(const Descriptor& tie) { shutdown(tie.get(), SHUT_RDWR); }

std::optional<Descriptor> call(const Invitation& invitation, uid_t user, std::string& why) {
  Descriptor tie = open_socket();
  const Address address(invitation.door);
  if (tie.get() < 0 || connect(tie.get(), address.get(), address.length) != 0) {
    why = errno == ECONNREFUSED ? "it is on another host" : std::strerror(errno);
    return std::nullopt;
  }
  if (!is_of(tie, user)) {
    why = "it is another user's";
    return std::nullopt;
  }
  Nonce nonce = invitation.nonce;
  if (!Message(nonce).send(tie)) {
    why = std::strerror(errno);
    return std::nullopt;
  }
  return tie;
}

bool give_region(const Descriptor& tie, std::uint32_t number, int memory) {
  Message message(bytes_of_object(number));
  message.attach(memory);
  return message.send(tie);
}

std::variant<std::uint64_t, Quiet> hear_released(const Descriptor& tie) {
  std::uint64_t lease = 0;
  ssize_t length = 0;
  do {
    length = recv(tie.get(), &lease, sizeof lease, MSG_DONTWAIT | MSG_TRUNC);
  } while (length < 0 && errno == EINTR);
  if (length == sizeof lease) return lease;
  return length < 0 && errno == EAGAIN ? Quiet::nothing_yet : Quiet::ended;
}

}  // namespace starling::mapped
