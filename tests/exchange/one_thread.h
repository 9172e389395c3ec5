// The optimizer's work with what a block sends, on one thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/kernels/update.h"

namespace starling {

// Writes x, or the values of it that the mask chooses, with the trailer, to be sent. Returns
// whether it is finite.
inline bool write_block(std::vector<float>& x, Outgoing outgoing, int exponent) {
  Trailer trailer{exponent, 0};
  outgoing.exponent = exponent;
  outgoing.sum = &trailer.sum;
  bool finite = true;
  for (std::size_t at = 0, next = 0; at < x.size(); at = next) {
    next = std::min(x.size(), outgoing.mask.stretch_end(at));
    kernels::WireBlock sent = outgoing;
    sent.values =
        outgoing.values != nullptr && outgoing.mask.chooses(at)
            ? static_cast<std::byte*>(outgoing.values) + bytes_of(outgoing.wire, outgoing.mask.chosen_of(at))
            : nullptr;
    finite &= kernels::update(kernels::SgdStep{}, {}, x.data() + at, nullptr, {}, sent, next - at);
  }
  if (outgoing.values == nullptr) return finite;
  set_trailer({static_cast<std::byte*>(outgoing.values),
               block_bytes(outgoing.wire, outgoing.mask.chosen_of(x.size()))},
              outgoing.wire, trailer);
  return finite;
}

inline void mix_block(std::vector<float>& x, std::span<const Arrival> arrived, Grid& grid) {
  std::vector<kernels::Measured> measured(arrived.size());
  for (std::size_t at = 0, next = 0; at < x.size(); at = next) {
    next = x.size();
    std::vector<kernels::Mix> mixes;
    for (std::size_t j = 0; j < arrived.size(); ++j) {
      const Arrival& a = arrived[j];
      next = std::min(next, a.mine.mask.stretch_end(at));
      if (a.mine.mask.chooses(at))
        mixes.push_back({a.weight, a.theirs.values(at), a.mine.values(at), &measured[j]});
    }
    kernels::update(kernels::SgdStep{}, mixes, x.data() + at, nullptr, {}, {}, next - at);
  }
  Grid::Wanted wanted;
  for (std::size_t j = 0; j < arrived.size(); ++j) {
    const Arrival& a = arrived[j];
    if (a.mine.mask.chosen_of(x.size()) == 0) continue;
    wanted.add(a.mine.wire, a.theirs.trailer, a.mine.trailer, measured[j]);
  }
  grid.follow(wanted);
}

// RMS distance of the workers' values to their mean.
inline double rms_to_mean(const std::vector<std::span<const float>>& workers) {
  double sum = 0;
  for (std::size_t k = 0; k < workers[0].size(); ++k) {
    double mean = 0;
    for (const auto& x : workers) mean += x[k] / static_cast<double>(workers.size());
    for (const auto& x : workers) sum += std::pow(x[k] - mean, 2);
  }
  return std::sqrt(sum / static_cast<double>(workers.size() * workers[0].size()));
}

// Workers without an exchange between them: every block arrives.
struct Herd {
  Herd(Wire wire, std::vector<std::vector<float>> x, std::size_t period, std::uint32_t one_in = 1)
      : wire(wire),
        period(period),
        one_in(one_in),
        x(std::move(x)),
        grids(this->x.size(), Grid(wire, period * one_in)) {}
  // A round: all write, then all mix.
  void mix(const Graph& graph) {
    const Mask mask = Mask::of_round(one_in, 0, round % period, round / period);
    ++round;
    std::vector<std::shared_ptr<Buffer>> sent;
    for (std::size_t i = 0; i < x.size(); ++i) {
      sent.push_back(std::make_shared<Buffer>(block_bytes(wire, mask.chosen_of(x[i].size()))));
      write_block(x[i], {{sent[i]->data(), wire}, mask}, grids[i].next());
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::vector<Arrival> arrived;
      for (const Neighbour& j : graph.neighbours[i]) {
        arrived.push_back({j.rank,
                           static_cast<float>(j.weight),
                           {payload_of(sent[static_cast<std::size_t>(j.rank)]), wire, mask},
                           {payload_of(sent[i]), wire, mask}});
      }
      mix_block(x[i], arrived, grids[i]);
    }
  }
  double sum() const {
    double sum = 0;
    for (const auto& worker : x) sum = std::accumulate(worker.begin(), worker.end(), sum);
    return sum;
  }
  double consensus_distance() const { return rms_to_mean({x.begin(), x.end()}); }
  const Wire wire;
  const std::size_t period;
  const std::uint32_t one_in;
  std::size_t round = 0;
  std::vector<std::vector<float>> x;
  std::vector<Grid> grids;
};

}  // namespace starling
