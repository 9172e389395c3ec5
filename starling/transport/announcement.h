// A control frame's payload that announces another frame, whose payload comes another way: the
// frame and four numbers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "starling/transport/frame.h"
#include "starling/transport/transport.h"

namespace starling {

struct Announcement {
  using Numbers = std::array<std::uint64_t, 4>;
  static constexpr std::size_t kBytes = Frame::kBytes + sizeof(Numbers);

  Frame frame;
  Numbers numbers;

  std::vector<std::byte> encode() const {
    std::vector<std::byte> bytes(kBytes);
    const auto head = frame.encode();
    std::memcpy(bytes.data(), head.data(), head.size());
    std::memcpy(bytes.data() + head.size(), numbers.data(), sizeof numbers);
    return bytes;
  }
  static std::optional<Announcement> decode(std::span<const std::byte> bytes) {
    if (bytes.size() != kBytes) return std::nullopt;
    const auto frame = Frame::decode(bytes.first<Frame::kBytes>());
    if (!frame) return std::nullopt;
    Announcement all{*frame, {}};
    std::memcpy(all.numbers.data(), bytes.data() + Frame::kBytes, sizeof all.numbers);
    return all;
  }
};

// Gives the handler a whole payload in chunks, as frames on the wire bring it. `frame` is that of
// its first byte.
inline void deliver_in_chunks(TransportHandler& handler, int peer, Frame frame,
                              std::span<const std::byte> whole, bool intact) {
  for (; !whole.empty(); frame.offset += frame.length) {
    const auto chunk = whole.first(std::min(Frame::kMaxPayload, whole.size()));
    whole = whole.subspan(chunk.size());
    frame.length = static_cast<std::uint32_t>(chunk.size());
    const auto place = handler.place(peer, frame);
    const bool wanted = place.size() == chunk.size();
    if (wanted) std::memcpy(place.data(), chunk.data(), chunk.size());
    handler.received(peer, frame, wanted ? place : std::span<std::byte>{}, wanted && intact);
  }
}

}  // namespace starling
