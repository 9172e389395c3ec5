#include "starling/transport/frame.h"

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

bool known(std::uint8_t type) {
  switch (static_cast<FrameType>(type)) {
    case FrameType::data:
    case FrameType::ack:
    case FrameType::abort:
    case FrameType::skip:
    case FrameType::resume:
    case FrameType::query:
    case FrameType::outcome:
    case FrameType::heartbeat:
    case FrameType::leave:
    case FrameType::where:
    case FrameType::ready:
    case FrameType::echo:
    case FrameType::jumps:
    case FrameType::join:
    case FrameType::share:
    case FrameType::done:
    case FrameType::quit:
    case FrameType::renew:
    case FrameType::part:
    case FrameType::mean:
    case FrameType::group_ack:
    case FrameType::group_abort:
    case FrameType::group_query:
    case FrameType::group_outcome:
    case FrameType::group_ready:
    case FrameType::group_got:
    case FrameType::invitation:
    case FrameType::handed:
    case FrameType::mapped:
    case FrameType::lies_at:
    case FrameType::piece:
    case FrameType::taken:
    case FrameType::ask:
    case FrameType::answer:
      return true;
  }
  return false;
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
