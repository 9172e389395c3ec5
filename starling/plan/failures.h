// The cost of failing hosts in closed form: the lost share of all hosts' time.
//
//   N     hosts, each of which fails `rate` times a second; M = 1 / (N rate) is the time between
//         failures of any of them
//   Ts    time to write a checkpoint
//   Tr    time to notice a failure and restart all workers
//   Tc    time from one checkpoint to the next
//   Td    time for which the neighbours wait for a silent worker;  d  neighbours
//   Ta    time for which a failed host is absent
//
// With all-reduce one failure stops all hosts: each loses Tr and half a period. The best period is
// (Young 1974)
//   Tc = sqrt(2 Ts M),   lost = Ts / Tc + (Tr + Tc / 2) / M
// With gossip the others go on: a failure costs the failed host Ta, and each of its d neighbours Td
// at most:
//   lost = rate (Ta + d Td)
// Both formulas hold for small losses; the result is capped at 1.
#pragma once

namespace starling {

struct Failures {
  double rate = 0;
  double checkpoint = 30;  // Ts
  double restart = 300;    // Tr
  double away = 3600;      // Ta
  double silent = 5;       // Td, World::timeouts.silent
};

// Tc; infinite if nothing fails.
double checkpoint_period(const Failures& failures, int hosts);
double lost_to_restarts(const Failures& failures, int hosts);
double lost_to_absence(const Failures& failures, int neighbours);

}  // namespace starling
