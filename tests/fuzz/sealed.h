// The head of a frame, with the magic and the checksum that a peer with the token would give it.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "starling/core/crc32c.h"
#include "starling/transport/frame.h"

namespace starling::fuzz {

using Header = std::array<std::byte, Frame::kBytes>;

inline Header sealed(Header bytes) {
  const std::uint32_t magic = Frame::kMagic;
  std::memcpy(bytes.data(), &magic, sizeof magic);
  const std::uint32_t crc = crc32c(std::span(bytes).first(Frame::kBytes - sizeof crc));
  std::memcpy(bytes.data() + Frame::kBytes - sizeof crc, &crc, sizeof crc);
  return bytes;
}

}  // namespace starling::fuzz
