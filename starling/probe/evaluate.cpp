#include "starling/probe/evaluate.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling {

namespace {

constexpr double kMost = 1e15;           // of bytes a second, or seconds
constexpr std::size_t kMostCard = 4096;  // bytes
constexpr double kSlow = 0.7;
constexpr double kAsymmetric = 1.5;
constexpr double kFar = 3;  // times the typical latency, and at least kNoticed more
constexpr double kNoticed = 1e-4;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double larger_over_smaller(double a, double b) { return std::max(a, b) / std::min(a, b); }

// The rate of the link, alone or with all its flows. With all flows in both directions it may be
// lower, because acknowledgements wait behind data.
double carried(const Measurements& measured, const std::pair<int, int>& link) {
  return std::max(measured.one_flow.at(link), measured.all_flows.at(link));
}

// The rates that flows between hosts can have at once, with equal shares (max-min fairness):
// repeatedly, the interface or link with the lowest rate per flow fixes the rates of its flows.
double possible_at_once(const Profile& profile, std::vector<std::pair<int, int>> flows) {
  struct Shared {
    double rate = 0;
    int flows = 0;
  };
  enum { sends = -1, receives = -2 };  // in place of a link's other end
  std::map<std::pair<int, int>, Shared> all;
  for (std::size_t h = 0; h < profile.hosts.size(); ++h) {
    all[{static_cast<int>(h), sends}].rate = profile.hosts[h].send;
    all[{static_cast<int>(h), receives}].rate = profile.hosts[h].receive;
  }
  for (const HostLink& link : profile.links) all[{link.from, link.to}].rate = link.rate;
  const auto used_by = [&](const std::pair<int, int>& flow) {
    std::vector<Shared*> used{&all[{flow.first, sends}], &all[{flow.second, receives}]};
    if (const auto link = all.find(flow); link != all.end()) used.push_back(&link->second);
    return used;
  };
  for (const auto& flow : flows) {
    for (Shared* shared : used_by(flow)) ++shared->flows;
  }
  double sum = 0;
  while (!flows.empty()) {
    const Shared* least = nullptr;
    for (const auto& [what, shared] : all) {
      if (shared.flows > 0 && (!least || shared.rate / shared.flows < least->rate / least->flows))
        least = &shared;
    }
    const double each = least->rate / least->flows;
    std::erase_if(flows, [&](const std::pair<int, int>& flow) {
      const auto used = used_by(flow);
      if (std::find(used.begin(), used.end(), least) == used.end()) return false;
      for (Shared* shared : used) {
        shared->rate -= each;
        --shared->flows;
      }
      sum += each;
      return true;
    });
  }
  return sum;
}

double share_of(const Profile& profile, const std::vector<int>& host_of,
                const std::vector<MeasuredFlow>& flows) {
  double measured = 0;
  std::vector<std::pair<int, int>> between_hosts;
  for (const MeasuredFlow& flow : flows) {
    const int from = host_of[flow.from], to = host_of[flow.to];
    if (from == to) continue;
    between_hosts.emplace_back(from, to);
    measured += flow.rate;
  }
  return measured / possible_at_once(profile, std::move(between_hosts));
}

}  // namespace

std::string to_text(const Measured& mine) {
  std::string text;
  for (std::size_t k = 0; k < mine.size(); ++k) {
    for (const auto& [flow, value] : mine[k])
      text += fmt::format("{} {} {} {:.17g}\n", k, flow.first, flow.second, value);
  }
  return text;
}

Measured measured_by_all(const std::vector<FlowSet>& planned, const std::vector<std::string>& texts) {
  Measured all(planned.size());
  for (std::size_t worker = 0; worker < texts.size(); ++worker) {
    std::istringstream words(texts[worker]);
    for (std::string word; words >> word;) {
      std::string from, to, number;
      words >> from >> to >> number;
      const std::size_t k = parse_number<std::size_t>(word).value_or(planned.size());
      const std::pair flow{parse_number<int>(from).value_or(-1), parse_number<int>(to).value_or(-1)};
      const double value = parse_number<double>(number).value_or(-1);
      const bool fits = k < planned.size() && planned[k].contains(flow) && 0 <= value && value <= kMost;
      if (!fits || !all[k].emplace(flow, value).second)
        throw Error(fmt::format("probe: worker {} says {}, which is none of its measurements", worker,
                                short_of(fmt::format("{} {} {} {}", word, from, to, number))));
    }
  }
  for (std::size_t k = 0; k < planned.size(); ++k) {
    if (all[k].size() != planned[k].size())
      throw Error(
          fmt::format("probe: measurement {} has {} flows of {}", k, all[k].size(), planned[k].size()));
  }
  return all;
}

std::string host_card(const std::string& identity, const std::string& name, const std::string& address) {
  return fmt::format("{}\n{}\n{}", printable(identity), printable(name), printable(address));
}

std::vector<Host> hosts_by_cards(const std::vector<std::string>& cards) {
  std::vector<Host> hosts;
  std::vector<std::string> identities, addresses;  // by host
  for (std::size_t worker = 0; worker < cards.size(); ++worker) {
    const std::string& card = cards[worker];
    const std::size_t first = card.find('\n'), second = card.find('\n', std::min(first + 1, card.size()));
    if (second == std::string::npos || card.size() > kMostCard)
      throw Error(fmt::format("probe: worker {} says {}, which names no host", worker, short_of(card)));
    const std::string identity = card.substr(0, first);
    const auto h = static_cast<std::size_t>(std::ranges::find(identities, identity) - identities.begin());
    if (h == hosts.size()) {
      identities.push_back(identity);
      hosts.push_back({.name = printable(card.substr(first + 1, second - first - 1))});
      addresses.push_back(printable(card.substr(second + 1)));
    }
    hosts[h].workers.push_back(static_cast<int>(worker));
  }
  std::map<std::string, int> named;
  for (const Host& host : hosts) ++named[host.name];
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    if (named[hosts[h].name] > 1) hosts[h].name += fmt::format(" ({})", addresses[h]);
  }
  return hosts;
}

std::vector<int> hosts_of_workers(const std::vector<Host>& hosts) {
  std::vector<int> host_of;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    for (const int worker : hosts[h].workers) {
      host_of.resize(std::max(host_of.size(), static_cast<std::size_t>(worker) + 1));
      host_of[static_cast<std::size_t>(worker)] = static_cast<int>(h);
    }
  }
  return host_of;
}

Profile network_profile(const Measurements& measured) {
  Profile profile;
  profile.hosts = measured.hosts;
  profile.all_reduce = measured.all_reduce;
  if (!measured.inside_rate.empty()) {
    profile.inside_rate = median(measured.inside_rate);
    profile.inside_latency = median(measured.inside_latency);
  }
  if (profile.hosts.size() == 1) return profile;

  for (Host& host : profile.hosts) host.send = host.receive = 0;
  for (const auto& [link, _] : measured.all_flows) {
    double& send = profile.hosts[link.first].send;
    double& receive = profile.hosts[link.second].receive;
    send = std::max(send, carried(measured, link));
    receive = std::max(receive, carried(measured, link));
  }
  std::vector<double> latencies;
  for (const auto& [link, latency] : measured.latency) latencies.push_back(latency);
  profile.latency = median(latencies);
  for (const auto& [link, _] : measured.all_flows) {
    const auto& [from, to] = link;
    const double rate = carried(measured, link);
    const double latency = measured.latency.at(link);
    const double possible = std::min(profile.hosts[from].send, profile.hosts[to].receive);
    if (rate < kSlow * possible || latency > std::max(kFar * profile.latency, profile.latency + kNoticed))
      profile.links.push_back({from, to, latency, rate});
  }
  const std::vector<int> host_of = hosts_of_workers(profile.hosts);
  for (const auto& [peers, flows] : measured.exchanges) {
    const double share = share_of(profile, host_of, flows);
    if (profile.shapes.empty() || profile.shapes.back().peers != peers)
      profile.shapes.push_back({peers, share});
    else
      profile.shapes.back().share = std::max(profile.shapes.back().share, share);
  }
  return profile;
}

std::vector<std::vector<double>> bandwidths(const Measurements& measured, const Profile& profile) {
  const std::vector<int> host_of = hosts_of_workers(profile.hosts);
  const std::size_t n = host_of.size();
  std::vector<std::vector<double>> all(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const std::pair link{host_of[i], host_of[j]};
      if (i == j) continue;
      if (link.first == link.second)
        all[i][j] = profile.inside_rate;
      else if (measured.all_flows.contains(link))
        all[i][j] = carried(measured, link);
      else
        all[i][j] = std::min(profile.hosts[link.first].send, profile.hosts[link.second].receive);
    }
  }
  return all;
}

std::vector<std::string> remarks(const Measurements& measured, const Profile& profile) {
  std::vector<std::string> lines;
  const auto& hosts = profile.hosts;
  const auto name = [&](int host) -> const std::string& { return hosts[host].name; };
  // With two hosts, the slow one cannot be identified.
  const bool hosts_are_known = hosts.size() > 2;
  if (hosts_are_known) {
    std::vector<double> send, receive;
    for (const Host& host : hosts) {
      send.push_back(host.send);
      receive.push_back(host.receive);
    }
    const double usual_send = median(send), usual_receive = median(receive);
    for (const Host& host : hosts) {
      if (host.send < kSlow * usual_send)
        lines.push_back(fmt::format("slow host: {} sends {}, most hosts {}", host.name, rate_text(host.send),
                                    rate_text(usual_send)));
      if (host.receive < kSlow * usual_receive)
        lines.push_back(fmt::format("slow host: {} receives {}, most hosts {}", host.name,
                                    rate_text(host.receive), rate_text(usual_receive)));
      if (larger_over_smaller(host.send, host.receive) > kAsymmetric)
        lines.push_back(fmt::format("asymmetric host: {} sends {} and receives {}", host.name,
                                    rate_text(host.send), rate_text(host.receive)));
    }
  }
  for (const HostLink& link : profile.links) {
    const double possible = std::min(hosts[link.from].send, hosts[link.to].receive);
    if (link.rate < kSlow * possible)
      lines.push_back(fmt::format("slow link: {} -> {} reaches {}, its ends reach {}", name(link.from),
                                  name(link.to), rate_text(link.rate), rate_text(possible)));
    if (link.latency > kFar * profile.latency)
      lines.push_back(fmt::format("far link: {} -> {} takes {:.3g} ms, most links {:.3g} ms", name(link.from),
                                  name(link.to), link.latency * 1e3, profile.latency * 1e3));
  }
  for (const auto& [link, there] : measured.one_flow) {
    const auto& [from, to] = link;
    const auto other_way = measured.one_flow.find({to, from});
    if (from > to || other_way == measured.one_flow.end()) continue;
    const double back = other_way->second;
    const double by_hosts =
        std::min(hosts[from].send, hosts[to].receive) / std::min(hosts[to].send, hosts[from].receive);
    const double ratio = hosts_are_known ? there / back / by_hosts : there / back;
    if (larger_over_smaller(ratio, 1) > kAsymmetric)
      lines.push_back(fmt::format("asymmetric link: {} -> {} carries {}, {} -> {} {}", name(from), name(to),
                                  rate_text(there), name(to), name(from), rate_text(back)));
  }
  return lines;
}

std::string rate_text(double rate) {
  if (rate < 1e6) return fmt::format("{:.3g} kB/s", rate / 1e3);
  if (rate < 1e9) return fmt::format("{:.3g} MB/s", rate / 1e6);
  return fmt::format("{:.3g} GB/s", rate / 1e9);
}

}  // namespace starling
