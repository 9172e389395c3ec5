#include "starling/transport/outbox.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {

void Outbox::check(Frame& frame, const Payload& payload) {
  const std::uint64_t size = payload.bytes.size();
  if (frame.total == 0) frame.total = frame.offset + size;
  if (frame.offset > frame.total || size > frame.total - frame.offset) {
    throw UsageError(
        fmt::format("transport: a payload of {} bytes at offset {} does not lie within a block of {} bytes",
                    size, frame.offset, frame.total));
  }
}

void Outbox::push(const Frame& frame, Payload payload) {
  auto& queue = payload.bytes.size() <= kMaxControl ? control_ : bulk_;
  queue.push_back({frame, std::move(payload)});
}

void Outbox::cancel(FrameType type, std::uint64_t round, std::uint32_t block) {
  const auto matches = [&](const Message& message) {
    return message.frame.type == type && message.frame.round == round && message.frame.block == block;
  };
  std::erase_if(control_, matches);
  std::erase_if(bulk_, matches);
}

void Outbox::clear() {
  control_.clear();
  bulk_.clear();
}

Outbox::Chunk Outbox::take(std::size_t most) {
  auto& queue = control_.empty() ? bulk_ : control_;
  Message& message = queue.front();
  const std::size_t left = message.payload.bytes.size() - message.taken;
  const std::size_t length = std::min(left, most);

  Chunk chunk{.frame = message.frame,
              .payload = {message.payload.owner, message.payload.bytes.subspan(message.taken, length)},
              .control = !control_.empty()};
  chunk.frame.offset += message.taken;
  chunk.frame.length = static_cast<std::uint32_t>(length);

  message.taken += length;
  if (message.taken == message.payload.bytes.size()) queue.pop_front();
  return chunk;
}

}  // namespace starling
