#include "starling/exchange/ledger.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace starling {

ExchangeStatistics& ExchangeStatistics::operator+=(const ExchangeStatistics& more) {
  rounds += more.rounds;
  skipped_rounds += more.skipped_rounds;
  committed += more.committed;
  aborted += more.aborted;
  jumped += more.jumped;
  late += more.late;
  directed_aborted += more.directed_aborted;
  bytes_sent += more.bytes_sent;
  bytes_in_place += more.bytes_in_place;
  payload_sent += more.payload_sent;
  seconds_waiting += more.seconds_waiting;
  lost.insert(more.lost.begin(), more.lost.end());
  for (const auto& [rank, blocks] : more.mixed) mixed[rank] += blocks;
  return *this;
}

std::span<const Arrival> Ledger::finish(int index) {
  Swaps& swaps = at(index);
  std::ranges::sort(swaps.arrived, {}, &Arrival::rank);
  swaps.finished = std::move(swaps.arrived);
  swaps.arrived.clear();
  std::ranges::move(swaps.mended, std::back_inserter(swaps.finished));
  swaps.mended.clear();
  for (const Arrival& arrival : swaps.finished) {
    if (arrival.weight != 0 && !arrival.of_group) ++counts_.mixed[arrival.rank];
  }
  return swaps.finished;
}

void Ledger::begin(int index, int swaps) {
  at(index).finished.clear();
  at(index).open = swaps;
}

void Ledger::forget() {
  for (Swaps& swaps : blocks_) {
    swaps.finished.clear();
    swaps.mended.clear();
  }
}

void Ledger::add_open(SwapId id, std::size_t swaps) {
  const std::lock_guard lock(monitor_.mutex);
  blocks_[id.block].open += static_cast<int>(swaps);
}

void Ledger::committed(SwapId id, std::optional<Arrival> arrival, std::size_t counted) {
  const std::lock_guard lock(monitor_.mutex);
  counts_.committed += counted;
  close(id, std::move(arrival));
}

void Ledger::aborted(SwapId id, std::optional<Arrival> arrival, std::size_t counted, bool directed) {
  const std::lock_guard lock(monitor_.mutex);
  counts_.aborted += counted;
  if (directed) ++counts_.directed_aborted;
  close(id, std::move(arrival));
}

void Ledger::close(SwapId id, std::optional<Arrival> arrival) {
  Swaps& swaps = blocks_[id.block];
  if (arrival) swaps.arrived.push_back(std::move(*arrival));
  if (--swaps.open == 0) monitor_.changed->notify_all();
}

void Ledger::mended(SwapId id, Arrival arrival, std::size_t late) {
  const std::lock_guard lock(monitor_.mutex);
  counts_.late += late;
  blocks_[id.block].mended.push_back(std::move(arrival));
}

}  // namespace starling
