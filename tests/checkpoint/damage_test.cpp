// Random damage to small valid files. Each is refused with an Error, or has its old content, and
// nothing crashes (ASan and UBSan check). Seeds are fixed.
#include <random>

#include <gmock/gmock.h>

#include "tests/checkpoint/folder.h"

namespace starling {
namespace {

constexpr int kRuns = 4000;

// One to four changes: bytes flipped, replaced by characters with a meaning in JSON, cut out,
// doubled, inserted, or the end cut off.
std::string damaged(std::string text, std::mt19937_64& random) {
  constexpr std::string_view kTelling = "{}[]\",:0123456789-.eE\\ \n\xff";
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
    const std::size_t at = below(text.size()), length = 1 + below(12);
    switch (below(6)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!text.empty()) text[at] = kTelling[below(kTelling.size())];
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(at, length));
        break;
      case 4:
        text.insert(at, length, static_cast<char>(random()));
        break;
      default:
        text.resize(below(text.size() + 1));
    }
  }
  return text;
}

TEST(Damage, ReadersRefuseItOrReadWhatTheHeaderSays) {
  const Folder folder;
  write_small(folder / "a", 3);
  const std::string whole = slurp(folder / "a");
  std::mt19937_64 random(20261121);
  int refused = 0;
  for (int run = 0; run < kRuns; ++run) {
    const std::string text = damaged(whole, random);
    spill(folder / "b", text);
    const std::string said = refusal([&] {
      const SafetensorsReader file(folder / "b");
      std::size_t bytes = 0;
      for (const TensorInfo& tensor : file.tensors()) {
        std::vector<std::byte> values(tensor.bytes());
        file.read(tensor, values);
        bytes += values.size();
        EXPECT_EQ(file.offset(tensor) + tensor.bytes() <= text.size(), true);
      }
      EXPECT_LE(bytes, text.size() - 8);
    });
    if (said == "accepted") continue;
    ++refused;
    EXPECT_THAT(said, testing::StartsWith((folder / "b") + ": offset ")) << run;
  }
  EXPECT_GT(refused, kRuns / 2);
  EXPECT_LT(refused, kRuns);  // tensors' bytes and names may be anything; checksums protect them
}

// With a manifest, only the original file is accepted.
TEST(Damage, CheckpointsRefuseAllOfIt) {
  const Folder folder;
  write_checkpoint(folder.path, 5);
  std::mt19937_64 random(20261122);
  for (const std::string name : {"manifest.json", "worker-1.safetensors"}) {
    const std::string path = folder / ("step-5/" + name), whole = slurp(path);
    for (int run = 0; run < kRuns / 2; ++run) {
      const std::string text = damaged(whole, random);
      spill(path, text);
      const std::string said = refusal([&] { Checkpoint(folder / "step-5").verified(1); });
      EXPECT_EQ(said == "accepted", text == whole) << name << ", run " << run;
    }
    spill(path, whole);
  }
}

TEST(Damage, EveryTruncationAndEveryFlippedBitIsRefused) {
  const Folder folder;
  write_checkpoint(folder.path, 5);
  for (const std::string name : {"manifest.json", "worker-0.safetensors"}) {
    const std::string path = folder / ("step-5/" + name), whole = slurp(path);
    const auto said = [&] { return refusal([&] { Checkpoint(folder / "step-5").verified(0); }); };
    for (std::size_t length = 0; length < whole.size(); ++length) {
      spill(path, whole.substr(0, length));
      EXPECT_THAT(said(), testing::StartsWith(path + ": ")) << name << " cut to " << length;
    }
    for (std::size_t at = 0; at < whole.size(); ++at) {
      std::string text = whole;
      text[at] = static_cast<char>(text[at] ^ (1 << at % 8));
      spill(path, text);
      EXPECT_THAT(said(), testing::StartsWith(path + ": ")) << name << " changed at " << at;
    }
    spill(path, whole);
    EXPECT_EQ(said(), "accepted");
  }
}

}  // namespace
}  // namespace starling
