// What failing hosts cost, in closed form: the share of all hosts' time that is lost.
//
//   N     hosts, each of which fails `rate` times a second; M = 1 / (N rate), the time between failures of any of them
//   Ts    to write a checkpoint;  Tr  to notice a failure and start all workers again;  Tc  from one checkpoint to the next
//   Td    for which the neighbours wait for a silent worker;  d  neighbours;  Ta  for which a failed host stays away
//
// Where all stop when one does (all-reduce), each failure costs everybody Tr and half a period, which is best (Young 1974) at
//   Tc = sqrt(2 Ts M),   lost = Ts / Tc + (Tr + Tc / 2) / M
// Where the others go on (gossip), it costs the failed host Ta and each of its d neighbours Td at most:
//   lost = rate (Ta + d Td)
// Both hold as long as they are small; no more than all is lost.
#pragma once

namespace starling {

struct Failures {
  double rate = 0;
  double checkpoint = 30;  // Ts
  double restart = 300;    // Tr
  double away = 3600;      // Ta
  double silent = 5;       // Td, World::timeouts.silent
};

// Tc; infinite where nothing fails.
double checkpoint_period(const Failures& failures, int hosts);
double lost_to_restarts(const Failures& failures, int hosts);
double lost_to_absence(const Failures& failures, int neighbours);

}  // namespace starling
