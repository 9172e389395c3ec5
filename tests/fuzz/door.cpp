// The words at the door of a run. The first byte chooses one, the rest is the text, with a signature
// by somebody who has the token, and without.
#include "starling/membership/door.h"

#include <array>

#include "starling/transport/tcp/proof.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {
namespace {

constexpr int kSeats = 4;

void look(const Door& door) {
  if (const auto epoch = door.epoch()) {
    check(read_epoch(to_text(*epoch), kSeats) == epoch, "an epoch that is read as another");
    check(epoch->members().size() + epoch->away(kSeats).size() == kSeats, "a member without a seat");
    door.publish(*epoch);
  }
  if (const auto knock = door.knock_of(2)) {
    check(knock->life > 0 && 0 <= knock->donor && knock->donor < kSeats, "a knock from nowhere");
    door.knock(*knock);
    check(door.knock_of(2) == knock, "a knock that is read as another");
  }
}

}  // namespace

void read(std::string_view bytes) {
  if (bytes.empty()) return;
  constexpr std::array keys{"epoch", "knock/2", "answer/17", "bell"};
  const std::string key =
      std::string("starling/door/a/") + keys[static_cast<unsigned char>(bytes.front()) % keys.size()];
  const std::string said(bytes.substr(1));
  const auto store = std::make_shared<MemoryStore>();
  World world{.rank = 2, .size = kSeats, .token = "a secret of these tests"};
  world.store = store;
  const Door door(world, "a");
  const auto heard = [&] {
    return door.epoch() || door.knock_of(2) || door.answer_to(17) || !door.bell().empty();
  };
  store->set(key, said);
  check(!heard(), "a word without a signature");
  store->set(key, tcp::sign(world.token, key + " " + said) + " " + said);
  check(!key.ends_with("answer/17") || door.answer_to(17) == said, "another answer");
  check(!key.ends_with("bell") || door.bell() == said, "another bell");
  look(door);
}

}  // namespace starling::fuzz
