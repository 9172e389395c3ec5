#include "starling/topology/ceca.h"

#include <bit>

#include "starling/topology/weights.h"

namespace starling {

namespace {

const CecaRound& at(const std::vector<CecaRound>& rounds, std::uint64_t round) {
  return rounds[(round - 1) % rounds.size()];
}

// Advances the shares from the end of the round before.
void turn(CecaShares& shares, const std::vector<CecaRound>& rounds, std::uint64_t round) {
  if (at(rounds, round - 1).sends_x == at(rounds, round).sends_x) return;
  shares.s += shares.d;
  shares.d = -shares.d;
}

}  // namespace

std::vector<CecaRound> ceca_2p_rounds(int n) {
  if (n == 1) return {{}};
  std::vector<CecaRound> rounds;
  const auto bits = static_cast<unsigned>(n - 1);
  int e = 0;
  for (int k = static_cast<int>(std::bit_width(bits)) - 1; k >= 0; --k) {
    const bool bit = (bits >> k & 1) != 0;
    rounds.push_back({e, bit});
    e = 2 * e + (bit ? 1 : 0);
  }
  return rounds;
}

CecaShares late_shares(const std::vector<CecaRound>& rounds, std::uint64_t from, std::uint64_t now) {
  CecaShares shares{0.5, at(rounds, from).w() - 0.5};
  for (std::uint64_t r = from + 1; r <= now && shares.d != 0; ++r) {  // 0 from the next cycle on
    turn(shares, rounds, r);
    shares.d *= 1 - at(rounds, r).w();
  }
  return shares;
}

CecaShares shares_of_d(const std::vector<CecaRound>& rounds, std::uint64_t now, std::uint64_t next) {
  CecaShares shares{0, 1};
  for (std::uint64_t r = now + 1; r <= next && shares.d != 0; ++r) {
    turn(shares, rounds, r);
    if (r < next) shares.d *= 1 - at(rounds, r).w();
  }
  return shares;
}

Schedule ceca_2p(int n) {
  Schedule schedule{"ceca-2p", {}};
  for (const CecaRound& round : ceca_2p_rounds(n)) {
    Graph& graph = schedule.rounds.emplace_back(n);
    for (int i = 0; n > 1 && i < n; ++i) add_arc(graph, i, (i + n - round.distance()) % n, 0.5);
  }
  return schedule;
}

}  // namespace starling
