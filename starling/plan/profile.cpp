#include "starling/plan/profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/range.h"
#include "starling/core/tree_reader.h"

namespace starling {

namespace {

constexpr std::size_t kMaxProfile = std::size_t{64} << 20;
constexpr int kProfileVersion = 2;
constexpr const char* kProfileFormat = "starling-profile";
constexpr std::size_t kMaxListed = 1'000'000;  // iterations
constexpr int kMaxWorkers = 4096;              // also hosts
constexpr std::size_t kMaxBlocks = 10'000;
constexpr double kMaxTimes = 1e8;  // of all workers: 0.8 GB
// The quotient of any two of these fits a clock.
constexpr Range kSeconds = between(0, 1e4), kForward = between(1e-9, 1e4);
constexpr Range kBytes = between(1, 1e12), kRate = between(1e3, 1e15);
constexpr Range kShare = between(1e-3, 1e3);

class ProfileReader : TreeReader {
 public:
  explicit ProfileReader(const std::string& file) : TreeReader(file) {}

  Profile read(std::string_view text) {
    const Node root = parse_json(text, file_);
    where_ = "";
    check_format(root);
    know_keys(root, {"format", "version", "units", "hosts", "between", "inside", "links", "shapes",
                     "all_reduce", "blocks", "compute"});
    check_units(needed(root, "units"));
    Profile profile;
    if (const Node* hosts = half(root, "hosts", {"between", "inside", "links", "shapes", "all_reduce"}))
      read_network(root, *hosts, profile);
    if (const Node* blocks = half(root, "blocks", {"compute"})) {
      read_blocks(*blocks, profile);
      read_compute(needed(root, "compute"), profile);
    }
    if (!profile.has_network() && !profile.has_compute())
      refuse(root.line, "it holds neither a network (hosts) nor compute (blocks)");
    return profile;
  }

 private:
  // Sets the current place for messages.
  const Node& section(const Node& node, const std::string& what, const std::vector<std::string>& keys) {
    where_ = "";
    if (!node.as<Node::Table>())
      refuse(node.line, fmt::format("{} must be a section, not {}", what, node.kind()));
    where_ = what + ": ";
    know_keys(node, keys);
    return node;
  }
  const Node::Array& array_of(const Node& node, std::string_view what, std::size_t least = 1,
                              std::size_t most = kMaxListed) const {
    const auto* array = node.as<Node::Array>();
    if (!array) refuse(node.line, fmt::format("{} must be an array, not {}", what, node.kind()));
    if (array->size() < least || array->size() > most) {
      refuse(node.line,
             fmt::format("{} has {} entries, allowed are {} to {}", what, array->size(), least, most));
    }
    return *array;
  }
  const std::string& text(const Node& node, std::string_view what) const {
    const auto* text = node.as<std::string>();
    if (!text) refuse(node.line, fmt::format("{} must be a text, not {}", what, node.kind()));
    return *text;
  }
  std::int64_t whole(const Node& node, std::string_view what, std::int64_t least, std::int64_t most) const {
    const auto* number = node.as<std::int64_t>();
    if (!number) refuse(node.line, fmt::format("{} must be a whole number, not {}", what, node.kind()));
    if (*number < least || *number > most)
      refuse(node.line, fmt::format("{} is {}, allowed are {} to {}", what, *number, least, most));
    return *number;
  }
  double number(const Node& node, std::string_view what, const Range& range, std::string_view unit) const {
    const std::optional<double> value = number_in(node);
    if (!value) refuse(node.line, fmt::format("{} must be a number of {}, not {}", what, unit, node.kind()));
    if (!range.holds(*value))
      refuse(node.line, fmt::format("{} is {:g} {}, must be {}", what, *value, unit, range.text()));
    return *value;
  }
  double seconds(const Node& node, std::string_view what) const {
    return number(node, what, kSeconds, "seconds");
  }
  double bytes(const Node& node) const { return number(node, "bytes", kBytes, "bytes"); }
  double rate(const Node& node, std::string_view what) const {
    return number(node, what, kRate, "bytes a second");
  }

  void check_format(const Node& root) const {
    const Node* format = find(root, "format");
    if (!format || !format->as<std::string>() || *format->as<std::string>() != kProfileFormat)
      refuse(format ? format->line : root.line,
             fmt::format("it is not a profile: format must be \"{}\"", kProfileFormat));
    const Node& version = needed(root, "version");
    const auto* number = version.as<std::int64_t>();
    if (!number || *number != kProfileVersion) {
      refuse(version.line,
             fmt::format("version must be {}, not {}: measure again with this version of Starling",
                         kProfileVersion, number ? std::to_string(*number) : version.kind()));
    }
  }

  void check_units(const Node& node) {
    const Node& units = section(node, "units", {"time", "data", "rate"});
    for (const auto& [name, unit] : {std::pair{"time", "s"}, {"data", "B"}, {"rate", "B/s"}}) {
      const Node& said = needed(units, name);
      if (text(said, name) != unit)
        refuse(said.line, fmt::format("{} must be \"{}\", not {}", name, unit, short_of(text(said, name))));
    }
    where_ = "";
  }

  // The key that begins a half of the profile. Without it the other keys of that half are refused.
  const Node* half(const Node& root, std::string_view first, const std::vector<std::string>& others) const {
    const Node* const begin = find(root, first);
    for (const std::string& other : others) {
      const Node* const there = find(root, other);
      if (!begin && there) refuse(there->line, fmt::format("{} without {}", other, first));
    }
    return begin;
  }

  void read_network(const Node& root, const Node& hosts, Profile& profile) {
    read_hosts(hosts, profile);
    const Node* const between_hosts =
        profile.hosts.size() > 1 ? &needed(root, "between") : find(root, "between");
    if (between_hosts) {
      const Node& between = section(*between_hosts, "between", {"latency"});
      profile.latency = seconds(needed(between, "latency"), "latency");
    }
    where_ = "";
    const bool together =
        std::ranges::any_of(profile.hosts, [](const Host& host) { return host.workers.size() > 1; });
    const Node* const inside_hosts = together ? &needed(root, "inside") : find(root, "inside");
    if (inside_hosts) {
      const Node& inside = section(*inside_hosts, "inside", {"latency", "rate"});
      profile.inside_latency = seconds(needed(inside, "latency"), "latency");
      profile.inside_rate = rate(needed(inside, "rate"), "rate");
    }
    where_ = "";
    if (const Node* links = find(root, "links")) read_links(*links, profile);
    if (const Node* shapes = find(root, "shapes")) read_shapes(*shapes, profile);
    if (const Node* all_reduce = find(root, "all_reduce")) read_all_reduce(*all_reduce, profile);
  }

  void read_hosts(const Node& node, Profile& profile) {
    std::vector<int> places;  // worker -> the number of hosts that list it
    const Node::Array& hosts = array_of(node, "hosts", 1, kMaxWorkers);
    for (const Node& entry : hosts) {
      section(entry, fmt::format("host {}", profile.hosts.size()), {"name", "workers", "send", "receive"});
      Host host;
      host.name = text(needed(entry, "name"), "name");
      if (host.name != printable(host.name))
        refuse(entry.line, fmt::format("name is {}, must be printable", short_of(host.name)));
      if (!host_places_.emplace(host.name, profile.hosts.size()).second)
        refuse(entry.line, fmt::format("another host is called {} too", short_of(host.name)));
      for (const Node& worker : array_of(needed(entry, "workers"), "workers", 1, kMaxWorkers)) {
        const auto rank = static_cast<int>(whole(worker, "a worker", 0, kMaxWorkers - 1));
        host.workers.push_back(rank);
        if (places.size() <= static_cast<std::size_t>(rank))
          places.resize(static_cast<std::size_t>(rank) + 1);
        if (++places[rank] > 1)
          refuse(worker.line, fmt::format("worker {} is on two hosts, or twice on one", rank));
      }
      if (hosts.size() > 1 || find(entry, "send")) host.send = rate(needed(entry, "send"), "send");
      if (hosts.size() > 1 || find(entry, "receive"))
        host.receive = rate(needed(entry, "receive"), "receive");
      profile.hosts.push_back(std::move(host));
    }
    where_ = "";
    const auto lost = std::find(places.begin(), places.end(), 0);
    if (lost != places.end()) {
      refuse(node.line, fmt::format("worker {} is on no host, but there are workers up to {}",
                                    lost - places.begin(), places.size() - 1));
    }
    workers_ = static_cast<int>(places.size());
  }

  int host_called(const Node& node, std::string_view what) const {
    const std::string& name = text(node, what);
    const auto place = host_places_.find(name);
    if (place == host_places_.end())
      refuse(node.line, fmt::format("{}: there is no host {}", what, short_of(name)));
    return static_cast<int>(place->second);
  }

  void read_links(const Node& node, Profile& profile) {
    std::set<std::pair<int, int>> known;
    for (const Node& entry : array_of(node, "links", 0)) {
      section(entry, fmt::format("link {}", profile.links.size()), {"from", "to", "latency", "rate"});
      HostLink link;
      link.from = host_called(needed(entry, "from"), "from");
      link.to = host_called(needed(entry, "to"), "to");
      if (link.from == link.to) refuse(entry.line, "its ends must be two hosts");
      if (!known.emplace(link.from, link.to).second) refuse(entry.line, "this link is listed twice");
      link.latency = seconds(needed(entry, "latency"), "latency");
      link.rate = rate(needed(entry, "rate"), "rate");
      profile.links.push_back(link);
    }
    where_ = "";
  }

  void read_shapes(const Node& node, Profile& profile) {
    for (const Node& entry : array_of(node, "shapes", 0)) {
      section(entry, fmt::format("shape {}", profile.shapes.size()), {"peers", "share"});
      Shape shape;
      shape.peers = static_cast<int>(whole(needed(entry, "peers"), "peers", 1, kMaxWorkers));
      shape.share = number(needed(entry, "share"), "share", kShare, "times an interface");
      if (!profile.shapes.empty() && profile.shapes.back().peers >= shape.peers)
        refuse(entry.line, "its peers must be more than those of the previous entry");
      profile.shapes.push_back(shape);
    }
    where_ = "";
  }

  void read_blocks(const Node& node, Profile& profile) {
    for (const Node& entry : array_of(node, "blocks", 1, kMaxBlocks)) {
      section(entry, fmt::format("block {}", profile.blocks.size()), {"bytes"});
      profile.blocks.push_back(bytes(needed(entry, "bytes")));
    }
    where_ = "";
  }

  // A list as long as the lists before it; the first list decides.
  std::vector<double> samples(const Node& node, const std::string& what, std::size_t& count) const {
    const Node::Array& list = array_of(node, what);
    if (count == 0) count = list.size();
    if (list.size() != count) {
      refuse(node.line, fmt::format("{} has {} entries, must have {}: one for each iteration", what,
                                    list.size(), count));
    }
    std::vector<double> values;
    values.reserve(count);
    const Range& range = what == "forward" ? kForward : kSeconds;  // an iteration takes some time
    for (const Node& entry : list) values.push_back(number(entry, what, range, "seconds"));
    return values;
  }
  std::vector<std::vector<double>> block_samples(const Node& node, const std::string& what,
                                                 std::size_t blocks, std::size_t& count) const {
    const Node::Array& lists = array_of(node, what);
    if (lists.size() != blocks) {
      refuse(node.line,
             fmt::format("{} has {} lists, must have {}: one for each block", what, lists.size(), blocks));
    }
    std::vector<std::vector<double>> values;
    for (const Node& list : lists)
      values.push_back(samples(list, fmt::format("{} of block {}", what, values.size()), count));
    return values;
  }

  void read_compute(const Node& node, Profile& profile) {
    const Node::Array& workers = array_of(node, "compute", 1, kMaxWorkers);
    if (!profile.has_network()) workers_ = static_cast<int>(workers.size());
    profile.compute.resize(workers_);
    std::vector<bool> seen(workers_);
    for (const Node& entry : workers) {
      section(entry, "compute", {"worker", "data_wait", "forward", "backward", "update"});
      const auto worker = static_cast<std::size_t>(whole(needed(entry, "worker"), "worker", 0, workers_ - 1));
      where_ = fmt::format("compute of worker {}: ", worker);
      if (seen[worker]) refuse(entry.line, "it is listed twice");
      seen[worker] = true;
      std::size_t count = 0;
      Compute& compute = profile.compute[worker];
      compute.forward = samples(needed(entry, "forward"), "forward", count);
      compute.data_wait = samples(needed(entry, "data_wait"), "data_wait", count);
      compute.backward = block_samples(needed(entry, "backward"), "backward", profile.blocks.size(), count);
      compute.update = block_samples(needed(entry, "update"), "update", profile.blocks.size(), count);
    }
    where_ = "";
    const auto lost = std::find(seen.begin(), seen.end(), false);
    if (lost != seen.end())
      refuse(node.line, fmt::format("compute of worker {} is missing", lost - seen.begin()));
  }

  void read_all_reduce(const Node& node, Profile& profile) {
    for (const Node& entry : array_of(node, "all_reduce", 0)) {
      section(entry, fmt::format("all_reduce {}", profile.all_reduce.size()), {"bytes", "seconds"});
      AllReduceTime time;
      time.bytes = bytes(needed(entry, "bytes"));
      time.seconds = seconds(needed(entry, "seconds"), "seconds");
      if (!profile.all_reduce.empty() && profile.all_reduce.back().bytes >= time.bytes)
        refuse(entry.line, "its bytes must be more than those of the previous entry");
      profile.all_reduce.push_back(time);
    }
    where_ = "";
  }

  int workers_ = 0;
  std::map<std::string, std::size_t> host_places_;
};

}  // namespace

Profile parse_profile(std::string_view text, const std::string& name) {
  return ProfileReader(name).read(text);
}

Profile read_profile(const std::string& path) {
  return parse_profile(read_at_most(path, kMaxProfile, "profile"), path);
}

int Profile::workers() const {
  if (!has_network()) return static_cast<int>(compute.size());
  return std::accumulate(hosts.begin(), hosts.end(), 0, [](int sum, const Host& host) {
    return sum + static_cast<int>(host.workers.size());
  });
}

Profile joined(const Profile& network, const Profile& compute) {
  const Compute& one = compute.compute.front();
  const double times =
      static_cast<double>(one.forward.size() * (2 + 2 * one.backward.size())) * network.workers();
  if (times > kMaxTimes)
    throw UsageError(fmt::format("profile: {:g} recorded times for {} workers, at most {:g} are allowed",
                                 times, network.workers(), kMaxTimes));
  Profile profile = network;
  profile.blocks = compute.blocks;
  profile.compute.clear();
  for (int i = 0; i < network.workers(); ++i)
    profile.compute.push_back(compute.compute[static_cast<std::size_t>(i) % compute.compute.size()]);
  return profile;
}

Profile in_blocks_of(const Profile& profile, double bytes) {
  const double total = std::accumulate(profile.blocks.begin(), profile.blocks.end(), 0.0);
  const auto count = static_cast<std::size_t>(std::max(1.0, std::ceil(total / bytes)));
  const double each = total / static_cast<double>(count);
  Profile cut = profile;
  cut.blocks.assign(count, each);
  for (std::size_t i = 0; i < profile.compute.size(); ++i) {
    const Compute& old = profile.compute[i];
    Compute& compute = cut.compute[i];
    compute.backward.assign(count, std::vector<double>(old.forward.size()));
    compute.update = compute.backward;
    double begin = 0;  // begin of the old block in the model
    for (std::size_t b = 0; b < profile.blocks.size(); ++b) {
      const double end = begin + profile.blocks[b];
      for (std::size_t k = 0; k < count; ++k) {
        const double from = each * static_cast<double>(k);
        const double part = (std::min(end, from + each) - std::max(begin, from)) / profile.blocks[b];
        for (std::size_t t = 0; part > 0 && t < old.forward.size(); ++t) {
          compute.backward[k][t] += part * old.backward[b][t];
          compute.update[k][t] += part * old.update[b][t];
        }
      }
      begin = end;
    }
  }
  return cut;
}

std::string print_profile(const Profile& profile) {
  using Json = nlohmann::ordered_json;
  Json all = {{"format", kProfileFormat},
              {"version", kProfileVersion},
              {"units", {{"time", "s"}, {"data", "B"}, {"rate", "B/s"}}}};
  if (profile.has_network()) {
    Json hosts = Json::array(), links = Json::array(), shapes = Json::array(), all_reduce = Json::array();
    for (const Host& host : profile.hosts) {
      hosts.push_back({{"name", host.name}, {"workers", host.workers}});
      if (std::isfinite(host.send)) hosts.back()["send"] = host.send;
      if (std::isfinite(host.receive)) hosts.back()["receive"] = host.receive;
    }
    for (const HostLink& link : profile.links) {
      links.push_back({{"from", profile.hosts[link.from].name},
                       {"to", profile.hosts[link.to].name},
                       {"latency", link.latency},
                       {"rate", link.rate}});
    }
    for (const Shape& shape : profile.shapes)
      shapes.push_back({{"peers", shape.peers}, {"share", shape.share}});
    for (const AllReduceTime& time : profile.all_reduce)
      all_reduce.push_back({{"bytes", time.bytes}, {"seconds", time.seconds}});
    all["hosts"] = std::move(hosts);
    if (profile.hosts.size() > 1) all["between"] = {{"latency", profile.latency}};
    if (std::isfinite(profile.inside_rate))
      all["inside"] = {{"latency", profile.inside_latency}, {"rate", profile.inside_rate}};
    all["links"] = std::move(links);
    all["shapes"] = std::move(shapes);
    all["all_reduce"] = std::move(all_reduce);
  }
  if (profile.has_compute()) {
    Json blocks = Json::array(), compute = Json::array();
    for (double bytes : profile.blocks) blocks.push_back({{"bytes", bytes}});
    for (std::size_t i = 0; i < profile.compute.size(); ++i) {
      const Compute& c = profile.compute[i];
      compute.push_back({{"worker", i},
                         {"data_wait", c.data_wait},
                         {"forward", c.forward},
                         {"backward", c.backward},
                         {"update", c.update}});
    }
    all["blocks"] = std::move(blocks);
    all["compute"] = std::move(compute);
  }
  return all.dump(1) + "\n";
}

}  // namespace starling
