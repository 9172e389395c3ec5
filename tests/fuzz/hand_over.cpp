// The messages over the tie between two workers of one host: regions of memory, and releases. In the
// input a byte says the next message's length and how many descriptors go with it.
#include "starling/transport/mapped/hand_over.h"

#include <cstring>
#include <iterator>
#include <vector>

#include <fcntl.h>
#include <sys/socket.h>

#include "tests/fuzz/target.h"

namespace starling::fuzz {
namespace {

constexpr std::size_t kMostDescriptors = 3;

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

void send(const Descriptor& tie, std::string_view bytes, const std::vector<int>& descriptors) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))]{};
  msghdr head{};
  head.msg_iov = &part;
  head.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const std::size_t size = descriptors.size() * sizeof(int);
    head.msg_control = control;
    head.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const extra = CMSG_FIRSTHDR(&head);
    extra->cmsg_level = SOL_SOCKET;
    extra->cmsg_type = SCM_RIGHTS;
    extra->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(extra), descriptors.data(), size);
  }
  check(sendmsg(tie.get(), &head, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()), "the tie is full");
}

}  // namespace

void read(std::string_view bytes) {
  const std::size_t before = open_descriptors();
  {
    int ends[2];
    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0, "no socket");
    const Descriptor peer(ends[0]), mine(ends[1]);
    const Descriptor memory(open("/dev/null", O_RDONLY | O_CLOEXEC));
    while (!bytes.empty()) {
      const auto says = static_cast<unsigned char>(bytes.front());
      const std::string_view message = bytes.substr(1, says % 16);
      const std::size_t descriptors = says / 16 % (kMostDescriptors + 1);
      bytes.remove_prefix(1 + message.size());
      if (message.empty()) continue;  // reads as the tie's end
      send(peer, message, std::vector<int>(descriptors, memory.get()));
      if (says < 128) {
        const auto region = mapped::take_region(mine);
        check(region.has_value() == (message.size() == sizeof(std::uint32_t)), "a message of another length");
        if (region) check((region->memory.get() >= 0) == (descriptors > 0), "another memory");
      } else {
        const auto lease = mapped::hear_released(mine);
        check(std::holds_alternative<std::uint64_t>(lease) == (message.size() == sizeof(std::uint64_t)),
              "a lease of another length");
      }
    }
    check(!mapped::take_region(mine), "a message that nobody sent");
    mapped::end_tie(peer);
    check(std::get<mapped::Quiet>(mapped::hear_released(mine)) == mapped::Quiet::ended,
          "the tie has not ended");
  }
  check(open_descriptors() == before, "a descriptor stays open");
}

}  // namespace starling::fuzz
