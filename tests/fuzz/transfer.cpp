// The transfer of a state. The first byte chooses an end of it; the other end says what the rest says
// (stage.h). A state that has come whole is opened as a checkpoint in memory.
#include "starling/membership/transfer.h"

#include <limits>

#include "starling/checkpoint/safetensors.h"
#include "tests/fuzz/stage.h"

namespace starling::fuzz {
namespace {

constexpr std::size_t kMost = 1 << 16;

void receive(const World& world, std::size_t most) {
  Receipt receipt(world, "a", 0, most);
  receipt.wait(std::chrono::milliseconds(300));
  check(receipt.state().bytes().size() <= most, "a state that is too large");
  const SafetensorsReader reader(receipt.state().open());
  for (const TensorInfo& tensor : reader.tensors()) {
    std::vector<std::byte> values(tensor.bytes());
    reader.read(tensor, values);
  }
}

void donate(const World& world, Stage& stage) {
  auto state = std::make_unique<MemoryFile>();
  state->resize(100);
  const std::uint32_t hash = crc32c(state->bytes());
  int changes = 0;
  const Donation donation(world, "a", 1, std::move(state), hash, [&] { ++changes; });
  while (stage.turn()) check(!donation.is_taken() || changes > 0, "taken, but nobody has said it");
}

}  // namespace

void read(std::string_view bytes) {
  if (bytes.empty()) return;
  const int end = bytes.front() & 1;
  Stage stage(bytes.substr(1), end, 2);
  World world{.rank = end, .size = 2};
  world.make_transport = [&](const World&, const std::string&) { return stage.transport(); };
  // Without a bound, the system refuses the largest.
  const std::size_t most = (bytes.front() & 2) != 0 ? std::numeric_limits<std::size_t>::max() : kMost;
  accepted([&] { end == 1 ? receive(world, most) : donate(world, stage); });
}

}  // namespace starling::fuzz
