#include "starling/exchange/inbox.h"

#include <utility>

#include <fmt/format.h>

#include "starling/kernels/update.h"

namespace starling {

void Inbox::put(SwapId id, SentBlock block) {
  const std::size_t bytes = block.bytes().size();
  payloads_.insert_or_assign(id, Incoming{{}, bytes, std::move(block)});
}

Inbox::Chunk Inbox::received(SwapId id, const Frame& frame, std::span<const std::byte> chunk, bool sound) {
  const auto keep = std::move(reading_);  // until the chunk is read
  if (!sound || (values_ && !kernels::all_finite(chunk, *values_))) {
    drop(id);
    return Chunk::damaged;
  }
  if (frame.total == 0) {  // such a payload has no place
    alignas(std::max_align_t) static std::byte nothing;
    payloads_[id].room.bytes = {&nothing, 0};
  }
  const auto found = payloads_.find(id);
  if (found == payloads_.end()) return Chunk::partial;
  found->second.received += frame.length;
  return found->second.received == frame.total ? Chunk::last : Chunk::partial;
}

const SentBlock& Inbox::read(SwapId id, Wire wire, Mask mask) {
  Incoming& payload = payloads_.at(id);
  return payload.block = SentBlock({payload.room.owner, payload.room.bytes}, wire, mask);
}

const SentBlock* Inbox::whole(SwapId id) const {
  const auto found = payloads_.find(id);
  return found == payloads_.end() || found->second.block.bytes().empty() ? nullptr : &found->second.block;
}

Inbox::Incoming Inbox::take(SwapId id) {
  auto node = payloads_.extract(id);
  return node ? std::move(node.mapped()) : Incoming{};
}

void Inbox::drop_before(std::uint64_t round) {
  std::erase_if(payloads_, [&](const auto& entry) { return entry.first.round < round; });
}

std::span<std::byte> EdgeInbox::place(SwapId id, const Frame& frame, BufferPool& pool) {
  return Inbox::place(id, frame, [&] { return room_of(pool, frame.total); });
}

void EdgeInbox::put(SwapId id, SentBlock block, bool good) {
  if (good) Inbox::put(id, std::move(block));
  edge_.block(id, good);
}

std::string_view EdgeInbox::received(SwapId id, const Frame& frame, std::span<const std::byte> chunk,
                                     bool sound, const Flaw& flaw, Mask mask) {
  if (!edge_.wants(id)) {
    if (!edge_.has(id)) drop(id);
    if (frame.offset + frame.length == frame.total) edge_.block(id, false);
    return {};
  }
  const Chunk come = Inbox::received(id, frame, chunk, sound);
  if (come == Chunk::partial) return {};
  const std::string_view wrong = come == Chunk::damaged ? kDamaged : flaw(read(id, wire_, mask));
  if (!wrong.empty()) drop(id);
  edge_.block(id, wrong.empty());
  return wrong;
}

Inbox::Room room_of(BufferPool& pool, std::size_t bytes) {
  auto buffer = pool.take(bytes);
  const std::span<std::byte> all(*buffer);
  return {std::move(buffer), all};
}

std::string damage(int from, const Frame& frame, const char* counted) {
  return fmt::format("worker {} sent a damaged block {} in {} {} (bytes {} to {}): not mixed", from,
                     frame.block, counted, frame.round, frame.offset, frame.offset + frame.length);
}

}  // namespace starling
