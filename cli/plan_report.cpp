#include "cli/plan_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "cli/chart.h"
#include "cli/page.h"
#include "starling/plan/all_reduce.h"
#include "starling/plan/iteration.h"

namespace starling::cli {

namespace {

constexpr const char* kPlanStyle = R"(
table { width: 100%; }
th:nth-child(-n+2), td:nth-child(-n+2), th:last-child, td:last-child { text-align: left; }
td { white-space: nowrap; } td:last-child { white-space: normal; }
tr.recommended { background: color-mix(in srgb, var(--c2) 18%, var(--page)); font-weight: 600; }
.hollow { fill: var(--page); stroke: var(--c); } .end-of-step { stroke: var(--ink); }
.bar { fill: var(--c); stroke: var(--page); stroke-width: 0.5; }
)";

constexpr const char* kOfAllReduce = "c1";
constexpr const char* kOfGossip = "c2";
constexpr const char* kOfNoLoss = "c7 dashed";

// The number of workers whose work gets done.
double worth_of(const PlannedWorld& world, const Forecast& outcome) {
  return world.n * efficiency(outcome).mean;
}

// ---------------------------------------------------------------- curves

constexpr double kWidth = 900, kHeight = 320, kLeft = 76, kRight = 170, kTop = 30, kBottom = 44;

// Logarithmic, so that equal gains look equal. Without losses the curve is a straight line.
struct Axes {
  double least, most;  // workers
  double low;          // lowest effective number of workers
  double x(double workers) const {
    return kLeft + std::log(workers / least) / std::log(most / least) * (kWidth - kLeft - kRight);
  }
  double y(double worth) const {
    return kHeight - kBottom - std::log(worth / low) / std::log(most / low) * (kHeight - kTop - kBottom);
  }
};

template <class Worth>
std::string curve(const std::vector<PlannedWorld>& worlds, const Axes& axes, const char* colour,
                  const std::string& name, double name_at, Worth worth) {
  std::string points, dots;
  for (const PlannedWorld& world : worlds) {
    const double x = axes.x(world.n), y = axes.y(worth(world));
    points += fmt::format("{:.1f},{:.1f} ", x, y);
    dots += fmt::format(R"(<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="3.5"/>)",
                        world.measured ? "dot" : "hollow", x, y);
  }
  return fmt::format(
      R"(<g class="{}"><polyline class="line" points="{}"/>{}<text x="{:.1f}" y="{:.1f}">{}</text></g>)"
      "\n",
      colour, points, dots, kWidth - kRight + 12, name_at, name);
}

std::string curves(const std::vector<PlannedWorld>& worlds) {
  const auto best = [](const PlannedWorld& world) { return worth_of(world, world.recommended().outcome); };
  const auto reduced = [](const PlannedWorld& world) { return worth_of(world, world.all_reduce); };
  double least_worth = worlds.front().n;
  for (const PlannedWorld& world : worlds) least_worth = std::min({least_worth, reduced(world), best(world)});
  const Axes axes{.least = static_cast<double>(worlds.front().n),
                  .most = static_cast<double>(worlds.back().n),
                  .low = std::exp2(std::floor(std::log2(least_worth)))};
  std::string svg =
      fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="Work done against workers">)"
                  "\n",
                  kWidth, kHeight);
  for (double worth = axes.low; worth <= axes.most; worth *= 2) {
    const double y = axes.y(worth);
    svg += fmt::format(
        R"(<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/><text class="end" x="{3}" y="{4:.1f}">{5:.7g}</text>)"
        "\n",
        kLeft, kWidth - kRight, y, kLeft - 8, y + 4, worth);
  }
  for (const PlannedWorld& world : worlds)
    svg += fmt::format(R"(<text class="middle" x="{:.1f}" y="{}">{}</text>)", axes.x(world.n),
                       kHeight - kBottom + 20, world.n);
  svg += fmt::format(
      "<text class=\"middle\" x=\"{:.1f}\" y=\"{}\">workers</text>"
      "<text class=\"middle\" transform=\"translate(16 {}) rotate(-90)\">work done, in workers</text>\n",
      (kLeft + kWidth - kRight) / 2, kHeight - 4, (kTop + kHeight - kBottom) / 2);
  // Moves names apart that would overlap.
  const double best_y = axes.y(best(worlds.back())) + 4;
  const double reduced_y = std::max(axes.y(reduced(worlds.back())) + 4, best_y + 16);
  svg += curve(worlds, axes, kOfGossip, "recommended", best_y, best);
  svg += curve(worlds, axes, kOfAllReduce, "all-reduce", reduced_y, reduced);
  svg += curve(worlds, axes, kOfNoLoss, "nothing lost", std::min(axes.y(axes.most) + 4, best_y - 16),
               [](const PlannedWorld& world) { return 1.0 * world.n; });
  return svg + "</svg>\n";
}

// ---------------------------------------------------------------- one iteration

// How bars of a kind are drawn, and their names in a tooltip and in the key.
struct BarStyle {
  Bar::What what;
  const char *colour, *name, *in_key;
};
constexpr std::array kBarStyles{BarStyle{Bar::What::forward, "c0", "forward", "data and forward"},
                                BarStyle{Bar::What::backward, "c3", "backward", "backward"},
                                BarStyle{Bar::What::update, "c2", "update", "update"},
                                BarStyle{Bar::What::link, "c1", "transfer", "on the link"}};

// Two lanes, one below the other, from `top` on: the worker and its link.
std::string lanes(const Iteration& one, const std::string& name, double top, double seconds) {
  const double scale = (kWidth - 140 - 10) / seconds;
  std::string svg =
      fmt::format(R"(<text class="title" x="0" y="{:.0f}">{}</text>)"
                  R"(<text x="0" y="{:.0f}">computes</text><text x="0" y="{:.0f}">on the link</text>)"
                  "\n",
                  top + 12, name, top + 36, top + 62);
  for (const Bar& bar : one.bars) {
    const double begin = std::max(0.0, bar.begin), end = std::min(one.seconds, bar.end);
    if (end <= begin) continue;
    const double y = top + (bar.what == Bar::What::link ? 48 : 22);
    const std::string block = bar.block < 0 ? "" : fmt::format(" of block {}", bar.block);
    const BarStyle& style = *std::ranges::find(kBarStyles, bar.what, &BarStyle::what);
    svg += fmt::format(
        R"(<rect class="bar {}" x="{:.2f}" y="{:.0f}" width="{:.2f}" height="20"><title>{}{}: {:.2f} ms</title></rect>)",
        style.colour, 140 + begin * scale, y, (end - begin) * scale, style.name, block,
        (bar.end - bar.begin) * 1e3);
  }
  const double end = 140 + one.seconds * scale;
  return svg +
         fmt::format(R"(<line class="end-of-step" x1="{0:.2f}" x2="{0:.2f}" y1="{1:.0f}" y2="{2:.0f}"/>)"
                     R"(<text class="end" x="{0:.2f}" y="{3:.0f}">{4:.2f} ms</text>)"
                     "\n",
                     end, top + 18, top + 72, top + 12, one.seconds * 1e3);
}

// In the letters of plan/iteration.h.
struct MeanTimes {
  double F = 0;
  std::vector<double> b, u;
};

MeanTimes mean_times(const Profile& profile) {
  const std::size_t blocks = profile.blocks.size();
  MeanTimes mean{.b = std::vector<double>(blocks), .u = std::vector<double>(blocks)};
  const auto add = [&](double& sum, const std::vector<double>& times) {
    for (const double time : times)
      sum += time / static_cast<double>(times.size()) / static_cast<double>(profile.compute.size());
  };
  for (const Compute& compute : profile.compute) {
    add(mean.F, compute.data_wait);
    add(mean.F, compute.forward);
    for (std::size_t k = 0; k < blocks; ++k) {
      add(mean.b[k], compute.backward[k]);
      add(mean.u[k], compute.update[k]);
    }
  }
  return mean;
}

std::string iteration(const PlannedWorld& world, const Profile& profile) {
  const Candidate& best = world.recommended();
  const MeanTimes mean = mean_times(profile);
  const double total = std::accumulate(profile.blocks.begin(), profile.blocks.end(), 0.0);
  std::vector<double> reduced, mixed;
  for (const double bytes : profile.blocks) {
    reduced.push_back(world.all_reduce.busiest.seconds == 0
                          ? 0
                          : all_reduce_seconds(world.network, bytes, world.all_reduces));
    mixed.push_back(best.outcome.busiest.seconds * bytes / total);
  }
  const Iteration all_reduce = all_reduce_iteration(mean.F, mean.b, mean.u, reduced),
                  gossip = iteration_ahead(mean.F, mean.b, mean.u, mixed);
  const double seconds = std::max(all_reduce.seconds, gossip.seconds);
  std::string key;
  for (const BarStyle& style : kBarStyles)
    key += fmt::format(R"(<span class="key {}"></span>{})", style.colour, style.in_key);
  return fmt::format(
      "<h3>One iteration of all-reduce, and one of what is recommended</h3>\n<p class=\"note\">{}</p>\n"
      "<svg viewBox=\"0 0 {} 165\" role=\"img\">\n{}{}</svg>\n",
      key, kWidth, lanes(all_reduce, "all-reduce", 0, seconds),
      lanes(gossip, escaped(fmt::format("{}, {}", best.schedule, name_of(best.wire))), 88, seconds));
}

// ---------------------------------------------------------------- tables

std::string table(const PlannedWorld& world) {
  std::string html =
      "<table>\n<tr><th>schedule</th><th>wire</th><th>step</th><th>80 % of steps</th><th>efficiency</th>"
      "<th>speed-up</th><th>held up by</th></tr>\n";
  const auto add = [&](const std::string& schedule, Wire wire, const Forecast& outcome,
                       const char* attributes = "") {
    html += fmt::format(
        "<tr{}><td>{}</td><td>{}</td><td>{:.2f} ms</td><td>{:.2f} to {:.2f} ms</td><td>{}</td>"
        "<td>{}</td><td>{}</td></tr>\n",
        attributes, escaped(schedule), name_of(wire), outcome.step * 1e3, outcome.low * 1e3,
        outcome.high * 1e3, efficiency_text(outcome), speed_up_text(outcome, world),
        escaped(bottleneck(outcome, world.network)));
  };
  add("all-reduce", Wire::fp32, world.all_reduce);
  for (const Candidate& row : world.rows)
    add(row.schedule, row.wire, row.outcome, &row == &world.recommended() ? " class=\"recommended\"" : "");
  if (world.one_host) add("one host alone", Wire::fp32, *world.one_host);
  return html + "</table>\n";
}

std::string section(const PlannedWorld& world, const Profile& profile) {
  const std::size_t hosts = world.network.hosts.size();
  std::string html = fmt::format("<h2>{} worker{} on {} host{}{}</h2>\n", world.n, world.n == 1 ? "" : "s",
                                 hosts, hosts == 1 ? "" : "s", world.measured ? "" : " (extrapolated)");
  html += "<ul>\n";
  for (const std::string& sentence : advice(world)) html += fmt::format("<li>{}</li>\n", escaped(sentence));
  html += "</ul>\n" + iteration(world, profile) + "<h3>All schedules</h3>\n" + table(world);
  return html;
}

}  // namespace

std::string html_report(const std::vector<PlannedWorld>& worlds, const Profile& profile,
                        const std::string& file, const std::string& knee) {
  std::string html = fmt::format(
      "<h1>How long a training step will take</h1>\n"
      "<p>From what was measured in {}, for all-reduce and for gossip with the schedules below. The step is "
      "one iteration, in the mean; the efficiency is the part of it in which a worker computes; the speed-up "
      "is over all-reduce.</p>\n",
      escaped(file));
  if (worlds.size() > 1) {
    html +=
        "<h2>What more workers are worth</h2>\n<p>Upwards: how many workers' work gets done by so many "
        "workers, which is their number times the efficiency. Both axes double from line to line; hollow "
        "points are extrapolated.</p>\n" +
        curves(worlds) + fmt::format("<p>{}</p>\n", escaped(knee));
  }
  for (const PlannedWorld& world : worlds) html += section(world, profile);
  html +=
      "<p class=\"note\">In the pictures of one iteration all times are means, nothing varies, and the link "
      "is as busy as the host's that is busiest. Its traffic may have begun in the iteration before. "
      "Extrapolated: for another number of workers than was measured, on hosts like those that were.</p>\n";
  return html_page("Starling: plan", kPlanStyle, html);
}

}  // namespace starling::cli
