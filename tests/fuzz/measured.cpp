// Two workers' texts of their measurements, the second behind a zero byte. They are also cards of
// their hosts.
#include <algorithm>
#include <cmath>

#include "starling/probe/evaluate.h"
#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  const std::vector<FlowSet> planned{{{0, 1}}, {{0, 1}, {1, 0}}};
  const std::size_t zero = std::min(bytes.find('\0'), bytes.size());
  const std::vector<std::string> texts{std::string(bytes.substr(0, zero)),
                                       std::string(bytes.substr(std::min(zero + 1, bytes.size())))};
  accepted([&] {
    const std::vector<Host> hosts = hosts_by_cards(texts);
    check(hosts_of_workers(hosts).size() == 2, "a worker without a host");
    for (const Host& host : hosts) check(host.name == printable(host.name), "a name of several lines");
  });
  accepted([&] {
    const Measured all = measured_by_all(planned, texts);
    check(all.size() == planned.size() && all[0].size() == 1 && all[1].size() == 2, "other measurements");
    for (const auto& flows : all) {
      for (const auto& [flow, value] : flows)
        check(std::isfinite(value) && value >= 0, "a value that is none");
    }
    check(measured_by_all(planned, {to_text(all)}) == all, "is read as others");
  });
}
