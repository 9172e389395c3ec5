#include "starling/transport/c10d/store_values.h"

#include <algorithm>

#include <arpa/inet.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling {
namespace {

// A name would be asked for in the network.
bool is_numeric(const std::string& host) {
  const std::string address = host.substr(0, host.find('%'));  // without an interface of IPv6
  in6_addr bytes{};
  return host.find('\0') == std::string::npos && (inet_pton(AF_INET, address.c_str(), &bytes) == 1 ||
                                                  inet_pton(AF_INET6, address.c_str(), &bytes) == 1);
}

}  // namespace

std::string Card::to_line() const {
  return fmt::format("{} {} {} {}", host, has_token ? 1 : 0, transport, address);
}

Card Card::from_line(const std::string& line, int of) {
  const auto first = line.find(' '), second = line.find(' ', first + 1), third = line.find(' ', second + 1);
  const auto refuse = [&] {
    throw Error(
        fmt::format("process group: worker {} wrote {} to the store: is it another version of Starling?", of,
                    short_of(line)));
  };
  if (first == std::string::npos || second != first + 2 || third == std::string::npos) refuse();
  Card card{line.substr(0, first), line[first + 1] == '1', line.substr(second + 1, third - second - 1),
            line.substr(third + 1)};
  if ((!card.address.empty() && !is_numeric(card.address)) || card.to_line() != line) refuse();
  return card;
}

std::string LifeSign::to_line() const { return fmt::format("{} {}", port, host); }

LifeSign LifeSign::from_line(const std::string& line, int of) {
  const std::size_t space = std::min(line.find(' '), line.size());
  LifeSign sign{0, line.substr(std::min(space + 1, line.size()))};
  sign.port = parse_number<decltype(sign.port)>(line.substr(0, space)).value_or(0);
  if (sign.port == 0 || !is_numeric(sign.host))
    throw Error(fmt::format("worker {} has no address in the store, but {}", of, short_of(line)));
  return sign;
}

}  // namespace starling
