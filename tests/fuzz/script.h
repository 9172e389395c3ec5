// The input of a target as a sequence of bytes and numbers, of which there are always more: zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace starling::fuzz {

class Script {
 public:
  explicit Script(std::string_view bytes) : rest_(bytes) {}
  bool ended() const { return rest_.empty(); }
  std::uint8_t byte() {  // 0 after the end
    const std::string_view one = bytes(1);
    return one.empty() ? 0 : static_cast<std::uint8_t>(one[0]);
  }
  std::string_view bytes(std::size_t most) {
    const std::string_view first = rest_.substr(0, most);
    rest_.remove_prefix(first.size());
    return first;
  }
  // Below 64 a byte; also an average's, a renewal's, or any of eight bytes.
  std::uint64_t number() {
    const std::uint8_t said = byte();
    const std::uint64_t low = said % 64;
    if (said / 64 == 1) return low << 16;
    if (said / 64 == 2) return ((std::uint64_t{1} << 40) + low) << 16;
    std::uint64_t number = low;
    for (int i = 0; said / 64 == 3 && i < 8; ++i) number = number << 8 | byte();
    return number;
  }

 private:
  std::string_view rest_;
};

}  // namespace starling::fuzz
