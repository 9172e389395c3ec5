#include "starling/optim/schemes/top_k_exchange.h"

#include <algorithm>

#include <fmt/format.h>

#include "starling/core/whole.h"

namespace starling {
namespace {

std::span<const float> message_of(const SentBlock& sent) {
  return {reinterpret_cast<const float*>(sent.bytes().data()), sent.bytes().size() / sizeof(float)};
}

std::span<float> floats_of_tensor(const at::Tensor& v) {
  return {v.mutable_data_ptr<float>(), static_cast<std::size_t>(v.numel())};
}

}  // namespace

void TopKExchange::attach(const Connection& connection, std::span<const Block> blocks) {
  if (!messages_.empty()) next_ = next_turn();
  exchange_ = connection.exchange;
  schedule_ = connection.schedule;
  for (std::size_t b = messages_.size(); b < blocks.size(); ++b) {
    messages_.emplace_back(parts_(blocks[b]), one_in_, in_levels_);
    own_.emplace_back(messages_.back().size());
  }
}

void TopKExchange::state(StateVisitor& visitor) {
  visitor.numbers(
      "sample",
      {.fresh = {0},
       .now = {static_cast<double>(next_turn())},
       .set = [this](std::span<const double> given) { next_ = static_cast<std::uint64_t>(given[0]); },
       .refusal = [last = turns() - 1](std::span<const double> given) -> std::string {
         const bool turn = is_whole_number(given[0], 0, static_cast<double>(last));
         return turn ? "" : fmt::format("wants a turn from 0 to {}", last);
       }});
}

void TopKExchange::send(const Block& block, const at::Tensor& v, const at::Tensor& x, bool finite) {
  const auto b = static_cast<std::size_t>(block.index);
  const Outgoing outgoing = exchange_->outgoing(block.index);
  round_ = exchange_->round();
  if (next_) {
    const std::uint64_t without = (round_ - 1) / schedule_.rounds.size() % turns();
    offset_ = (*next_ + turns() - without) % turns();
    next_.reset();
  }
  std::vector<float>& own = own_[b];
  std::ranges::fill(own, 0.0F);
  if (finite) {
    messages_[b].write(floats_of_tensor(v), floats_of_tensor(x), turn_of(round_), own);
    messages_[b].add(own, -1, floats_of_tensor(v));
    if (outgoing.values != nullptr) std::ranges::copy(own, static_cast<float*>(outgoing.values));
  }
  start(*exchange_, block, finite);
}

void TopKExchange::take(const Block& block, float weight, const at::Tensor& sum, const at::Tensor& x) {
  const TopKMessage& form = messages_[static_cast<std::size_t>(block.index)];
  const std::vector<float>& own = own_[static_cast<std::size_t>(block.index)];
  const std::span<float> all = floats_of_tensor(sum);
  std::vector<Arrival> now, late;
  for (const Arrival& a : finish(*exchange_, block)) (a.round == round_ ? now : late).push_back(a);
  const Graph& graph = schedule_.at(static_cast<long long>(round_ - 1));
  double missing = 0;
  for (const Neighbour& j : graph.neighbours[static_cast<std::size_t>(rank_)]) {
    if (std::ranges::count(now, j.rank, &Arrival::rank) == 0) missing += j.weight;
  }
  const auto add = [&](std::span<const float> message, float w) { form.add(message, weight * w, all); };
  const auto later = std::ranges::find_if(now, [this](const Arrival& a) { return a.rank > rank_; });
  for (auto a = now.begin(); a != later; ++a) add(message_of(a->theirs), a->weight);
  add(own, static_cast<float>(graph.self_weight(rank_) + missing));
  for (auto a = later; a != now.end(); ++a) add(message_of(a->theirs), a->weight);
  for (const Arrival& a : late) add(message_of(a.theirs), a.weight), add(message_of(a.mine), -a.weight);
  now.insert(now.end(), late.begin(), late.end());
  for (const Arrival& a : now)
    form.mix_sample(message_of(a.theirs), message_of(a.mine), a.weight, turn_of(a.round),
                    floats_of_tensor(x));
}

}  // namespace starling
