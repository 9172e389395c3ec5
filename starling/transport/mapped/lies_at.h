// The place of a frame's payload in shared memory. It is sent as the payload of a control frame.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "starling/transport/frame.h"

namespace starling::mapped {

struct LiesAt {
  static constexpr std::size_t kBytes = Frame::kBytes + 4 * sizeof(std::uint64_t);

  Frame frame;
  std::uint64_t invitation = 0, lease = 0, region = 0, offset = 0;

  std::vector<std::byte> encode() const {
    std::vector<std::byte> bytes(kBytes);
    const auto head = frame.encode();
    const std::array numbers{invitation, lease, region, offset};
    std::memcpy(bytes.data(), head.data(), head.size());
    std::memcpy(bytes.data() + head.size(), numbers.data(), sizeof numbers);
    return bytes;
  }
  static std::optional<LiesAt> decode(std::span<const std::byte> bytes) {
    if (bytes.size() != kBytes) return std::nullopt;
    const auto frame = Frame::decode(bytes.first<Frame::kBytes>());
    if (!frame) return std::nullopt;
    std::array<std::uint64_t, 4> numbers{};
    std::memcpy(numbers.data(), bytes.data() + Frame::kBytes, sizeof numbers);
    return LiesAt{*frame, numbers[0], numbers[1], numbers[2], numbers[3]};
  }
  // The payload in its region; nothing if it lies outside.
  std::optional<std::span<const std::byte>> in(std::span<const std::byte> memory) const {
    if (frame.total > std::numeric_limits<std::uint32_t>::max() || frame.total > memory.size() ||
        offset > memory.size() - frame.total)
      return std::nullopt;
    return memory.subspan(offset, frame.total);
  }
};

}  // namespace starling::mapped
