#include "starling/transport/frame.h"

#include <algorithm>
#include <utility>

#include "starling/core/little_endian.h"

namespace starling {
namespace {

// The places of the fields in the 64 bytes.
enum At : std::size_t {
  kMagicAt = 0,
  kTypeAt = 4,
  kDtypeAt = 5,
  kReservedAt = 6,  // six bytes, zero
  kBlockAt = 12,
  kRoundAt = 16,
  kStepAt = 24,
  kLengthAt = 28,
  kValueAt = 32,
  kTotalAt = 40,
  kOffsetAt = 48,
  kPayloadCrcAt = 56,
  kHeaderCrcAt = 60,
};

// The first and the last of each row of numbers that have a type.
constexpr std::pair<FrameType, FrameType> kRows[] = {{FrameType::data, FrameType::jumps},
                                                     {FrameType::join, FrameType::renew},
                                                     {FrameType::part, FrameType::lies_at},
                                                     {FrameType::piece, FrameType::taken},
                                                     {FrameType::ask, FrameType::answer}};

bool known(std::uint8_t number) {
  const auto type = static_cast<FrameType>(number);
  return std::ranges::any_of(kRows,
                             [type](const auto& row) { return row.first <= type && type <= row.second; });
}

}  // namespace

std::array<std::byte, Frame::kBytes> Frame::encode() const {
  std::array<std::byte, kBytes> bytes{};
  put(bytes, kMagicAt, kMagic);
  put(bytes, kTypeAt, static_cast<std::uint8_t>(type));
  put(bytes, kDtypeAt, dtype);
  put(bytes, kBlockAt, block);
  put(bytes, kRoundAt, round);
  put(bytes, kStepAt, step);
  put(bytes, kLengthAt, length);
  put(bytes, kValueAt, value);
  put(bytes, kTotalAt, total);
  put(bytes, kOffsetAt, offset);
  put(bytes, kPayloadCrcAt, payload_crc);
  put(bytes, kHeaderCrcAt, crc32c(std::span(bytes).first(kHeaderCrcAt)));
  return bytes;
}

std::optional<Frame> Frame::decode(std::span<const std::byte, kBytes> bytes) {
  if (take<std::uint32_t>(bytes, kMagicAt) != kMagic) return std::nullopt;
  if (take<std::uint32_t>(bytes, kHeaderCrcAt) != crc32c(bytes.first(kHeaderCrcAt))) return std::nullopt;
  const auto type = take<std::uint8_t>(bytes, kTypeAt);
  const bool reserved =
      take<std::uint16_t>(bytes, kReservedAt) != 0 || take<std::uint32_t>(bytes, kReservedAt + 2) != 0;
  if (!known(type) || reserved) return std::nullopt;
  const Frame frame{.type = static_cast<FrameType>(type),
                    .dtype = take<std::uint8_t>(bytes, kDtypeAt),
                    .round = take<std::uint64_t>(bytes, kRoundAt),
                    .block = take<std::uint32_t>(bytes, kBlockAt),
                    .step = take<std::uint32_t>(bytes, kStepAt),
                    .value = take<std::uint64_t>(bytes, kValueAt),
                    .total = take<std::uint64_t>(bytes, kTotalAt),
                    .offset = take<std::uint64_t>(bytes, kOffsetAt),
                    .length = take<std::uint32_t>(bytes, kLengthAt),
                    .payload_crc = take<std::uint32_t>(bytes, kPayloadCrcAt)};
  if (frame.length > kMaxPayload) return std::nullopt;
  if (frame.offset > frame.total || frame.length > frame.total - frame.offset) return std::nullopt;
  return frame;
}

}  // namespace starling
