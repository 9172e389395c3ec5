// The place of a frame's payload in shared memory. It is sent as the payload of a control frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "starling/transport/announcement.h"

namespace starling::mapped {

struct LiesAt {
  static constexpr std::size_t kBytes = Announcement::kBytes;

  Frame frame;
  std::uint64_t invitation = 0, lease = 0, region = 0, offset = 0;

  std::vector<std::byte> encode() const {
    return Announcement{frame, {invitation, lease, region, offset}}.encode();
  }
  static std::optional<LiesAt> decode(std::span<const std::byte> bytes) {
    const auto said = Announcement::decode(bytes);
    if (!said) return std::nullopt;
    const auto& [invitation, lease, region, offset] = said->numbers;
    return LiesAt{said->frame, invitation, lease, region, offset};
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
