#include "starling/train/virtual_cluster.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include "starling/core/error.h"
#include "starling/core/input.h"
#include "starling/core/random.h"
#include "starling/optim/backward_hooks.h"
#include "starling/optim/gathering.h"
#include "starling/optim/options.h"
#include "starling/plan/all_reduce.h"
#include "starling/plan/extrapolate.h"
#include "starling/train/evaluate.h"
#include "starling/train/learner.h"
#include "starling/train/trainer.h"
#include "starling/train/virtual_network.h"
#include "starling/transport/c10d/virtual_collectives.h"
#include "starling/transport/local/local.h"

namespace starling {
namespace {

// Lets a gradient's time pass: before its last backward(), and in it whenever a parameter's
// gradient is ready. Constructed before the optimizer, so its hooks run first and an all-reduce
// begins after the gradient's time.
class GradientClock {
 public:
  GradientClock(VirtualTime& time, const std::vector<at::Tensor>& parameters, std::int64_t passes)
      : time_(time), passes_(passes), seen_(parameters.size()), hooks_(parameters, [this](std::size_t i) {
          if (++seen_[i] % passes_ == 0) time_.sleep(duration_of(now_.backward * shares_[i]));
        }) {
    double all = 0;
    for (const at::Tensor& p : parameters)
      all += shares_.emplace_back(p.requires_grad() ? static_cast<double>(p.numel()) : 0);
    for (double& share : shares_) share /= all;
  }
  void begin(const GradientTime& takes) {
    if (time_.now() > kEndOfTime)
      throw UsageError(
          fmt::format("simulate: more than {:g} virtual seconds: gradients, links or the run are too long",
                      seconds(kEndOfTime.time_since_epoch())));
    now_ = takes;
    time_.sleep(duration_of(takes.before));
  }
  void update() { time_.sleep(duration_of(now_.update)); }

 private:
  VirtualTime& time_;
  const std::int64_t passes_;
  std::vector<std::int64_t> seen_;  // gradients of each parameter
  std::vector<double> shares_;
  GradientTime now_{};
  BackwardHooks hooks_;
};

struct Worker {
  std::unique_ptr<Learner> learner;
  std::unique_ptr<GradientClock> clock;
  std::unique_ptr<Optimizer> optimizer;
  double lr = 0;  // of the latest step
  // Since the last look:
  double losses = 0;
  int losses_counted = 0;
  // At the last look:
  double waited = 0;
};

constexpr int kMostThreads = 1024;

// Only the worker whose turn it is uses the members.
class VirtualRun {
 public:
  VirtualRun(const Recipe& recipe, const VirtualCluster& cluster, double look_every,
             const std::function<void(const Look&)>& observe)
      : recipe_(recipe),
        cluster_(cluster),
        look_every_(duration_of(look_every)),
        observe_(observe),
        n_(cluster.workers()),
        make_task_(named_input([&] { return task_of(recipe).load(recipe); })),
        average_(recipe, make_task_, {0, n_}),
        time_(std::make_shared<VirtualTime>(n_)),
        all_done_(time_->condition()),
        workers_(static_cast<std::size_t>(n_)) {}

  Summary run() {
    std::vector<World> worlds = virtual_worlds();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < n_; ++rank)
      threads.emplace_back([&, rank] { live(worlds[static_cast<std::size_t>(rank)]); });
    for (auto& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    return summary_;
  }

 private:
  std::vector<World> virtual_worlds() {
    const auto interfaces = std::make_shared<VirtualNetwork>(cluster_.network, cluster_.link_cv, link_seed());
    const auto transports = virtual_transports(
        {.time = time_, .cross = [interfaces](int from, int to, std::size_t bytes, Time now) {
           return interfaces->cross(from, to, bytes, now);
         }});
    const auto collectives = virtual_collectives(time_, [this](int workers, std::size_t bytes) {
      return collective(workers, static_cast<double>(bytes));
    });
    std::vector<World> worlds = World::threads(n_);
    std::map<int, int> on_host;
    for (World& world : worlds) {
      const int host = cluster_.network.host_of[static_cast<std::size_t>(world.rank)];
      world.local_rank = on_host[host]++;
      world.make_transport = transports;
      world.make_collectives = collectives;
    }
    for (World& world : worlds)
      world.local_size = on_host[cluster_.network.host_of[static_cast<std::size_t>(world.rank)]];
    return worlds;
  }

  // The duration of a collective among all workers, or within a node.
  Duration collective(int workers, double bytes) {
    const double slower = of_a_ring(workers), k = workers;
    if (workers == n_)
      return duration_of(slower * all_reduce_seconds(cluster_.network, bytes, cluster_.all_reduce));
    return duration_of(slower * (k - 1) *
                       (cluster_.network.inside_latency + bytes / k / cluster_.network.inside_rate));
  }

  // The slowdown of a ring by varying links: each of its steps waits for the step before, here and
  // at the worker before.
  double of_a_ring(int workers) {
    if (cluster_.link_cv == 0 || workers < 2) return 1;
    ++collectives_;
    const int steps = 2 * (workers - 1);
    std::vector<double> end(static_cast<std::size_t>(workers)), last = end;
    for (int s = 0; s < steps; ++s) {
      std::swap(end, last);
      for (std::size_t i = 0; i < end.size(); ++i) {
        const double before = last[i == 0 ? end.size() - 1 : i - 1];
        end[i] = std::max(last[i], before) +
                 lognormal(cluster_.link_cv, link_seed() ^ collectives_, static_cast<int>(i), s);
      }
    }
    return *std::ranges::max_element(end) / steps;
  }
  std::uint64_t link_seed() const { return random_bits({seed_of(recipe_), 1}); }

  void live(const World& world) {
    Worker& me = workers_[static_cast<std::size_t>(world.rank)];
    // One worker runs at a time and has all cores, but each worker keeps its own threads for them.
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    at::set_num_threads(recipe_.run.threads > 0 ? recipe_.run.threads
                                                : std::clamp(kMostThreads / n_, 1, std::max(cores, 1)));
    const VirtualTime::Life life(*time_, world.rank);
    try {
      train(me, world);
    } catch (...) {
      fail();
    }
    me.optimizer.reset();
  }

  // The first failure is the cause of the others.
  void fail() {
    if (!failure_) failure_ = std::current_exception();
  }

  void train(Worker& me, const World& world) {
    me.learner = std::make_unique<Learner>(recipe_, make_task_, Drawer{world.rank, world.size});
    torch::nn::Module& model = me.learner->model();
    me.clock = std::make_unique<GradientClock>(*time_, model.parameters(), recipe_.train.accumulate);
    me.optimizer = make_optimizer(recipe_, model, world);
    if (++training_ == n_) look_later();
    const std::int64_t steps = me.learner->steps();
    for (std::int64_t k = 0; !failure_; ++k) {
      const std::int64_t done = recipe_.run.ends == "together" ? gradients_ / n_ : k;
      if (done >= steps) break;
      me.lr = me.learner->begin_step(done, *me.optimizer);
      me.clock->begin(cluster_.gradient(world.rank, k));
      const double loss = me.learner->gradient(k, *me.optimizer);
      me.clock->update();
      me.optimizer->step();
      ++gradients_;
      me.losses += loss;
      ++me.losses_counted;
    }
    me.optimizer->stand_by();
    if (--training_ == 0 && !failure_) look();
    wait_for_all();
  }

  // Workers that still train need the optimizers of all others.
  void wait_for_all() {
    std::unique_lock lock(mutex_);
    const auto done = [this] { return training_ == 0 || failure_; };
    all_done_->notify_all();
    while (!all_done_->wait_until(lock, time_->now() + std::chrono::hours(1), done)) {
    }
  }

  void look_later() {
    time_->at(time_->now() + look_every_, [this] {
      if (training_ == 0 || failure_) return;  // the last look comes at the end
      try {
        look();
        look_later();
      } catch (...) {
        fail();
      }
    });
  }

  // Tests the average model, which average_ then holds. All workers stand still.
  void look() {
    const c10::AutoGradMode no_gradient(false);
    Look seen{.seconds = seconds(time_->now().time_since_epoch()),
              .gradients = static_cast<std::uint64_t>(gradients_),
              .epochs = static_cast<double>(gradients_) / n_ / average_.steps_per_epoch()};
    look_at_training(seen);
    double squares = 0;
    std::int64_t values = 0;
    const auto mean_of = [&](std::size_t i, const auto& tensors_of, at::Tensor to, bool counts) {
      at::Tensor sum = at::zeros_like(to, at::kDouble), weight = sum.clone();
      for (const Worker& worker : workers_) {
        const at::Tensor value = tensors_of(worker.learner->model())[i];
        const at::Tensor w = worker.optimizer->weights(value);
        sum += w * value;
        weight += w;
      }
      const at::Tensor mean = sum / weight;
      for (const Worker& worker : workers_) {
        if (counts)
          squares += (tensors_of(worker.learner->model())[i] - mean).square().sum().template item<double>();
      }
      if (counts) values += to.numel();
      to.copy_(mean);
    };
    const auto parameters = [](const torch::nn::Module& model) { return model.parameters(); };
    const auto buffers = [](const torch::nn::Module& model) { return model.buffers(); };
    const torch::nn::Module& average = average_.model();
    for (std::size_t i = 0; i < average.parameters().size(); ++i)
      mean_of(i, parameters, average.parameters()[i], true);
    for (std::size_t i = 0; i < average.buffers().size(); ++i)
      mean_of(i, buffers, average.buffers()[i], false);
    const Score score = test(average_.task(), workers_.front().optimizer->world().log);
    seen.consensus_distance = std::sqrt(squares / static_cast<double>(values * n_));
    seen.test_loss = score.loss;
    seen.score = score.value;
    if (averages_in_pairs(make_options(recipe_))) seen.gossip.emplace();
    for (const Worker& worker : workers_) {
      const Statistics counted = worker.optimizer->statistics();
      seen.bytes_sent += counted.bytes_sent;
      if (!seen.gossip) continue;
      seen.gossip->rate += counted.rate / n_;
      for (const auto& edge : counted.edges)
        seen.gossip->longest_gap = std::max(seen.gossip->longest_gap, edge.longest_gap);
    }
    observe_(seen);
    if (training_ == 0) summarize(seen);
  }

  // After the last look.
  void summarize(const Look& end) {
    const double n = n_;
    summary_ = begun_summary(recipe_, n_);
    summary_.steps = average_.steps();
    summary_.samples = gradients_ * recipe_.train.batch * recipe_.train.accumulate;
    summary_.seconds = end.seconds;
    summary_.loss = end.loss;
    summary_.test_loss = end.test_loss;
    summary_.score = end.score;
    summary_.consensus_distance = end.consensus_distance;
    summary_.bytes_sent_per_worker = end.bytes_sent / static_cast<std::uint64_t>(n_);
    summary_.class_counts = average_.task().class_counts();
    double payload = 0;
    for (const Worker& worker : workers_) {
      const Statistics counted = worker.optimizer->statistics();
      payload += static_cast<double>(counted.payload_sent) / n;
      summary_.waiting_share += end.seconds > 0 ? counted.seconds_waiting / end.seconds / n : 0;
      summary_.blocks_aborted += static_cast<double>(counted.aborted) / n;
      summary_.blocks_jumped += static_cast<double>(counted.jumped) / n;
      summary_.directed_aborted += static_cast<double>(counted.directed_aborted) / n;
      summary_.questions_unanswered += static_cast<double>(counted.questions.unanswered) / n;
      summary_.steps_skipped += static_cast<double>(counted.skipped) / n;
    }
    summary_.payload_sent_per_worker = static_cast<std::uint64_t>(std::llround(payload));
  }

  // Losses, learning rate and waiting since the last look; the same if nothing was done since.
  void look_at_training(Look& seen) {
    double losses = 0, waited = 0;
    int counted = 0;
    seen.loss_least = std::numeric_limits<double>::infinity();
    seen.loss_most = -seen.loss_least;
    for (Worker& worker : workers_) {
      seen.lr += worker.lr / n_;
      const double waiting = worker.optimizer->statistics().seconds_waiting;
      waited += waiting - std::exchange(worker.waited, waiting);
      const int own = std::exchange(worker.losses_counted, 0);
      const double sum = std::exchange(worker.losses, 0);
      if (own == 0) continue;
      seen.loss_least = std::min(seen.loss_least, sum / own);
      seen.loss_most = std::max(seen.loss_most, sum / own);
      losses += sum;
      counted += own;
    }
    const double took = seen.seconds - last_.seconds;
    seen.waiting_share = took > 0 ? waited / n_ / took : last_.waiting_share;
    seen.loss = counted > 0 ? losses / counted : last_.loss;
    if (counted == 0) seen.loss_least = last_.loss_least, seen.loss_most = last_.loss_most;
    last_ = seen;
  }

  const Recipe recipe_;
  const VirtualCluster cluster_;
  const Duration look_every_;
  const std::function<void(const Look&)> observe_;
  const int n_;
  const MakeTask make_task_;
  Learner average_;
  const std::shared_ptr<VirtualTime> time_;
  std::mutex mutex_;  // of the condition
  const std::unique_ptr<Condition> all_done_;
  std::vector<Worker> workers_;
  int training_ = 0;  // workers that still train
  std::int64_t gradients_ = 0;
  std::uint64_t collectives_ = 0;
  Summary summary_;
  Look last_;  // as far as look_at_training() has filled it in
  std::exception_ptr failure_;
};

}  // namespace

Network even_network(int n, double rate, double latency, double slow_link) {
  Network network;
  network.latency = network.inside_latency = latency;
  network.inside_rate = rate;
  Host host;
  host.send = host.receive = rate;
  network.hosts.assign(static_cast<std::size_t>(n), host);
  for (int i = 0; i < n; ++i) network.host_of.push_back(i);
  network.hosts.front().send = network.hosts.front().receive = rate / slow_link;
  return network;
}

std::function<GradientTime(int, std::int64_t)> even_compute(double mean, double cv, double straggler,
                                                            std::int64_t passes, std::uint64_t seed) {
  return [=](int worker, std::int64_t k) {
    const double takes = mean * (worker == 0 ? straggler : 1) * lognormal(cv, seed, worker, k);
    const double backward = takes * 2 / 3 / static_cast<double>(passes);
    return GradientTime{.before = takes - backward, .backward = backward};
  };
}

VirtualCluster cluster_of(const Profile& profile, int n, std::uint64_t seed) {
  const auto gradient = [compute = profile.compute, seed](int worker, std::int64_t k) {
    const Compute& mine = compute[static_cast<std::size_t>(worker) % compute.size()];
    const std::size_t drawn =
        random_bits({seed, static_cast<std::uint64_t>(worker), static_cast<std::uint64_t>(k)}) %
        mine.forward.size();
    GradientTime takes{.before = mine.data_wait[drawn] + mine.forward[drawn]};
    for (const auto& block : mine.backward) takes.backward += block[drawn];
    for (const auto& block : mine.update) takes.update += block[drawn];
    return takes;
  };
  Network network = network_of(profile, n);
  std::vector<AllReduceTime> all_reduces = all_reduces_of(profile, network);
  return {std::move(network), gradient, std::move(all_reduces)};
}

void check_simulated(const Recipe& recipe, const VirtualCluster& cluster, double look_every) {
  const auto refuse = [](bool asked, const char* key) {
    if (asked)
      throw UsageError(fmt::format("simulate: {} is for workers that are processes: leave it out", key));
  };
  refuse(recipe.checkpoint.every > 0, "checkpoint.every");
  refuse(!recipe.checkpoint.resume.empty(), "checkpoint.resume");
  refuse(!recipe.checkpoint.model.empty(), "checkpoint.model");
  refuse(recipe.log.timeline, "log.timeline");
  refuse(!recipe.log.profile.empty(), "log.profile");
  refuse(recipe.log.tensorboard, "log.tensorboard");
  refuse(recipe.mixing.topology == "auto", "mixing.topology = auto");
  refuse(recipe.train.ema > 0, "train.ema");
  if (recipe.run.device != "cpu")
    throw UsageError(
        fmt::format("simulate: run.device = {}: workers are simulated on the cpu", recipe.run.device));
  if (!(look_every > 0))
    throw UsageError(fmt::format("simulate: a look every {} s is not allowed: above 0", look_every));
  if (recipe.model.dtype != "fp32") {
    throw UsageError(fmt::format(
        "simulate: model.dtype = {}: only fp32 is simulated, since what is looked at are the parameters",
        recipe.model.dtype));
  }
  const auto& host_of = cluster.network.host_of;
  check_settings(recipe, cluster.workers(), static_cast<int>(std::ranges::count(host_of, host_of.front())));
}

Summary train(const Recipe& recipe, const VirtualCluster& cluster, double look_every,
              const std::function<void(const Look&)>& observe) {
  return VirtualRun(recipe, cluster, look_every, observe).run();
}

}  // namespace starling
