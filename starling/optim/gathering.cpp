#include "starling/optim/gathering.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/optim/engine.h"
#include "starling/topology/schedules.h"

namespace starling {
namespace {

constexpr char kChannel[] = "gathering-";  // the beginning of its name
constexpr std::int64_t kWord = sizeof(std::int64_t);
// The maximum with it is the other's word, whatever its bits mean.
constexpr std::int64_t kNobodys = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMostText = 16 << 20;   // bytes
constexpr std::int64_t kPackBytes = 25 << 20;  // small tensors are spread together

std::int64_t words(std::int64_t bytes) { return (bytes + kWord - 1) / kWord; }
std::int64_t words_of(const at::Tensor& tensor) { return words(static_cast<std::int64_t>(tensor.nbytes())); }

std::vector<int> everyone_of(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

ExchangeOptions options_without_others(const World& world, const std::vector<int>& members) {
  ExchangeOptions options = exchange_options(world);
  for (int rank = 0; rank < world.size; ++rank) {
    if (!std::ranges::binary_search(members, rank)) options.away.insert(rank);
  }
  return options;
}

}  // namespace

Gathering::Gathering(const World& world, const std::string& channel)
    : Gathering(world, channel, everyone_of(world)) {}

// All members are neighbours, so meet() waits for all.
Gathering::Gathering(const World& world, const std::string& channel, std::vector<int> members)
    : rank_(world.rank),
      size_(world.size),
      members_(std::move(members)),
      exchange_(world.make_transport(world, kChannel + channel),
                make_schedule("complete", static_cast<int>(members_.size())).for_ranks(members_, size_), {},
                options_without_others(world, members_)) {
  exchange_.meet();
}

void Gathering::maximum(std::span<std::int64_t> values) {
  const std::set<int> here = exchange_.maximum(values);
  std::set<int> missing;
  for (const int rank : members_) {
    if (!here.contains(rank)) missing.insert(rank);
  }
  if (missing.empty()) return;
  if (here.empty())
    throw Error(fmt::format("worker {} was away or interrupted while all workers had to be together", rank_));
  throw Error(fmt::format("{} left, died or fell silent while all workers had to be together",
                          name_of_workers(missing)));
}

std::vector<std::string> Gathering::texts(const std::string& mine) {
  const auto me = static_cast<std::size_t>(rank_), n = static_cast<std::size_t>(size_);
  std::vector<std::int64_t> bytes(n);
  bytes[me] = static_cast<std::int64_t>(mine.size());
  maximum(bytes);
  for (std::size_t r = 0; r < n; ++r) {
    if (bytes[r] > kMostText)
      throw Error(fmt::format("worker {} says a text of {} bytes; allowed are {}", r, bytes[r], kMostText));
  }
  const auto most = static_cast<std::size_t>(words(*std::ranges::max_element(bytes)));
  std::vector<std::int64_t> all(n * most, kNobodys);
  std::ranges::copy(std::as_bytes(std::span(mine)),
                    std::as_writable_bytes(std::span(all).subspan(me * most)).begin());
  maximum(all);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < n; ++r)
    texts.emplace_back(reinterpret_cast<const char*>(all.data() + r * most),
                       static_cast<std::size_t>(bytes[r]));
  return texts;
}

void Gathering::spread(const std::vector<at::Tensor>& tensors) {
  const c10::AutoGradMode no_gradient(false);
  for (std::size_t first = 0, end = 0; first < tensors.size(); first = end) {
    std::int64_t length = 0;
    do {
      length += words_of(tensors[end++]);
    } while (end < tensors.size() && (length + words_of(tensors[end])) * kWord <= kPackBytes);
    const at::Tensor pack = at::full({length}, kNobodys, at::kLong);
    const auto each = [&](const auto& copy) {
      std::int64_t offset = 0;
      for (std::size_t i = first; i < end; offset += words_of(tensors[i++]) * kWord) {
        const auto bytes = static_cast<std::int64_t>(tensors[i].nbytes());
        // A view of the pack, in the tensor's type and shape.
        const at::Tensor part = pack.view(at::kByte).narrow(0, offset, bytes);
        copy(tensors[i], part.view(tensors[i].scalar_type()).view(tensors[i].sizes()));
      }
    };
    const bool is_first = rank_ == members_.front();
    if (is_first) each([](const at::Tensor& tensor, const at::Tensor& part) { part.copy_(tensor); });
    maximum({pack.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(length)});
    if (!is_first) each([](const at::Tensor& tensor, const at::Tensor& part) { tensor.copy_(part); });
  }
}

decltype(World::make_transport) virtual_transports(const LocalNetwork& network) {
  return [at_once = local_transports({.time = network.time}), timed = local_transports(network)](
             const World& world, const std::string& channel) {
    return (channel.starts_with(kChannel) ? at_once : timed)(world, channel);
  };
}

}  // namespace starling
