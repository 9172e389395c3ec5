// Values in the store that others may have written: a worker's address, its card, its life sign. The
// bytes are also an address that somebody with the token has signed.
#include "starling/transport/c10d/store_values.h"

#include "starling/transport/tcp/address_book.h"
#include "starling/transport/tcp/local_end.h"
#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  const std::string text(bytes);
  const tcp::Identity self{.rank = 0, .size = 4, .channel = "0", .token = "a secret of these tests"};
  check(!tcp::read_address(self, 2, text).is_signed, "a signature without the token");
  const tcp::SaidAddress said = tcp::read_address(self, 2, tcp::signed_address(self, 2, text));
  check(said.is_signed == (text.find(' ') == std::string::npos), "a signature that does not hold");
  check(!tcp::read_address(self, 1, tcp::signed_address(self, 2, text)).is_signed,
        "another worker's address");
  if (said.address) {
    const std::string again = tcp::to_string(*said.address);
    check(tcp::read_address(self, 2, tcp::signed_address(self, 2, again)).address == said.address,
          "is read as another address");
  }
  accepted([&] { check(Card::from_line(text, 3).to_line() == text, "is read as another card"); });
  accepted([&] {
    const LifeSign sign = LifeSign::from_line(text, 3);
    const LifeSign again = LifeSign::from_line(sign.to_line(), 3);
    check(again.port == sign.port && again.host == sign.host, "is read as another life sign");
  });
}
