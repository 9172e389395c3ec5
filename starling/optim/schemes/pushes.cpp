#include "starling/optim/schemes/pushes.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {

void PushScheme::attach(const Connection& connection) {
  Scheme::attach(connection);
  w_.resize(blocks_.size(), 1);
}

void PushScheme::restart() { std::ranges::fill(w_, 1.0); }

void PushScheme::state(StateVisitor& visitor) {
  visit_weights(visitor, w_, [this](std::span<const double> given) { std::ranges::copy(given, w_.begin()); });
}

Then PushScheme::sender(const Block& block, const Outgoing& outgoing) {
  return [this, &block, outgoing, w = w(block)](bool finite) {
    if (outgoing.values != nullptr)
      write_weight(w, outgoing.wire,
                   static_cast<std::byte*>(outgoing.values) + bytes_of(outgoing.wire, values(block)));
    start(exchange(), block, finite);
  };
}

std::vector<Arrival> PushScheme::absorb(const Block& block) {
  double& w = w_[static_cast<std::size_t>(block.index)];
  // mass, and the block that it comes from or goes to
  std::vector<std::pair<double, SentBlock>> moved;
  const auto move = [&](double share, const SentBlock& q) {
    if (share == 0) return;
    const double mass = share * weight_of(q, values(block));
    w += mass;
    const auto same =
        std::ranges::find(moved, q.bytes().data(), [](const auto& m) { return m.second.bytes().data(); });
    same == moved.end() ? void(moved.emplace_back(mass, q)) : void(same->first += mass);
  };
  for (const Arrival& swap : finish(exchange(), block)) {
    move(swap.weight, swap.theirs);
    move(-swap.given, swap.mine);
  }
  std::vector<Arrival> mixes;
  for (auto& [mass, q] : moved) {
    if (mass != 0) mixes.push_back({.weight = static_cast<float>(mass / w), .theirs = std::move(q)});
  }
  return mixes;
}

void check_shares(const Options& options, const SchemeSettings&, const Schedule& schedule) {
  for (std::size_t r = 0; r < schedule.rounds.size(); ++r) {
    const Graph& graph = schedule.rounds[r];
    std::vector<double> given(static_cast<std::size_t>(graph.workers()));
    for (const auto& row : graph.neighbours) {
      for (const Neighbour& j : row) given[static_cast<std::size_t>(j.rank)] += j.weight;
    }
    const auto most = std::ranges::max_element(given);
    if (*most > 1 - 1e-4) {
      throw UsageError(fmt::format(
          "scheme \"{}\" needs a topology in which every worker keeps a share of itself: in round {} of "
          "\"{}\" worker {} gives all away",
          options.scheme.name, r, schedule.name, most - given.begin()));
    }
  }
}

}  // namespace starling
