// The messages of a dialer and of an acceptor.
#include <algorithm>
#include <span>

#include "starling/transport/tcp/proof.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  const tcp::Identity self{.rank = 1, .size = 4, .channel = "0", .token = "secret"};
  tcp::Conversation said;
  auto& hello = said.hello;
  auto& challenge = said.challenge;
  const auto all = std::as_bytes(std::span(bytes));
  std::copy_n(all.begin(), std::min(all.size(), hello.size()), hello.begin());
  const auto rest = all.subspan(std::min(all.size(), hello.size()));
  std::copy_n(rest.begin(), std::min(rest.size(), challenge.size()), challenge.begin());

  const tcp::Caller caller = tcp::examine(hello, self);
  check(caller.refusal == printable(caller.refusal), "not one line: " + caller.refusal);
  check(caller.refusal.empty() == (caller.rank > self.rank && caller.rank < self.size), "a wrong caller");
  if (const auto read = tcp::Challenge::decode(challenge))
    check(read->encode() == challenge, "a challenge that is two");
  said.sealed = !rest.empty() && rest.back() == std::byte{1};
  const tcp::Digest mine = tcp::prove(self.token, tcp::Role::dialer, said);
  check(!tcp::same(mine, tcp::prove(self.token, tcp::Role::acceptor, said)), "proofs are equal");
}

}  // namespace starling::fuzz
