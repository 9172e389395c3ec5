#include "starling/optim/checkpoint_writer.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <mutex>
#include <set>
#include <utility>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "starling/checkpoint/checkpoint.h"
#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/core/file.h"
#include "starling/core/random.h"
#include "starling/core/with_lock.h"
#include "starling/optim/checkpoint.h"
#include "starling/transport/c10d/one_line.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr auto kAtEnd = std::chrono::seconds(1);      // for the files of others, if this worker ends
constexpr auto kToAppear = std::chrono::seconds(30);  // of a note, on a disk over a network
constexpr auto kSayWaits = std::chrono::seconds(5);   // for this worker's own disk, then ever more seldom
constexpr auto kSayMostSeldom = std::chrono::seconds(60);
constexpr std::int64_t kLongWait = 1'000'000;  // microseconds
constexpr double kMicro = 1e6;
constexpr std::uint64_t kMostNote = 1 << 16;
constexpr const char* kAttempt = "attempt";
constexpr const char* kFailed = "failed";
constexpr const char* kLeftOut = "left out";

// The word of a worker to all when a checkpoint is due: the number of its last attempt, which is
// even; one more if it could leave no note there; this one if it has made none. 0: it is not there.
constexpr std::int64_t kNoAttempt = 1;
// Behind these are the maxima over all workers.
enum Slot : std::size_t { kWaited, kNumber, kTrained, kSlots };  // kNumber: of the next attempt

std::string note_in(const std::string& draft, int worker) {
  return fs::path(draft) / fmt::format("worker-{}.json", worker);
}

// The text of `latest`; empty if it cannot be read.
std::string latest_in(const std::string& root) {
  try {
    return read_text(fs::path(root) / "latest", kMostNote);
  } catch (const Error&) {
    return "";
  }
}

// Tensors that others hold, too, are not copies yet.
void copy_shared(OptimizerState& state) {
  const c10::AutoGradMode no_gradient(false);
  for (auto& [name, tensor] : state.tensors) {
    if (tensor.use_count() == 1 && tensor.storage().use_count() == 1) continue;
    tensor = tensor.is_cpu() ? tensor.clone() : tensor.cpu();
  }
}

}  // namespace

struct CheckpointWriter::Attempt {
  Attempt(std::string root_of_all, int how_many, Manifest progress, const World& world)
      : root(std::move(root_of_all)),
        keep(how_many),
        manifest(std::move(progress)),
        rank(world.rank),
        log(world.log) {}
  // The threads end first.
  ~Attempt() {
    if (written.valid()) written.wait();
    tell([&] { ends = Clock::now() + kAtEnd; });
    if (committed.valid()) committed.wait();
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // `reason`: there is no state; else empty. counts: Optimizer's; if not, it leaves a note alone.
  void write(OptimizerState state, WorkerFile mine, std::string reason, bool counts);
  bool commit();
  bool collect();
  std::optional<Manifest> read_note(int worker) const;
  void warn(const std::string& reason) const {
    log(Level::warning,
        fmt::format("no checkpoint of step {}, the ones before it are kept: {}", manifest.step, reason));
  }
  std::string name() const { return fmt::format("{:x}", number); }
  template <class F>
  void tell(const F& change) {
    with_lock(mutex, change);
    changed.notify_all();
  }

  const std::string root;
  const int keep;
  Manifest manifest;  // `files`: of the notes that have come
  const int rank;
  const Log log;
  std::int64_t number = 0;  // of this attempt, so that a note of an earlier one is not taken for one of it
  std::set<int> missing;    // the workers that took part and have left no note yet

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex:
  std::set<int> gone;        // workers that have ended since, also if others have their ranks now
  bool unsaid = false;       // a worker has failed, and could not leave a note
  std::optional<Time> ends;  // no longer than that for the others

  bool failed_unsaid = false;  // this worker; set before `written`
  std::future<void> written;
  std::future<bool> committed;  // of the worker that commits
};

void CheckpointWriter::Attempt::write(OptimizerState state, WorkerFile mine, std::string reason,
                                      bool counts) {
  const FailpointStep of(manifest.step);
  Manifest note{.step = manifest.step, .workers = manifest.workers, .recipe = {{kAttempt, name()}}};
  const std::string draft = draft_folder(root, manifest.step);
  try {
    draft_checkpoint(root, manifest.step);
    if (reason.empty() && counts)
      mine.digest = save_tensors(fs::path(draft) / mine.name(), state.tensors, state.metadata);
  } catch (const std::exception& error) {
    reason = one_line(error);
  }
  if (!reason.empty()) note.recipe.emplace_back(kFailed, reason);
  if (reason.empty() && !counts) note.recipe.emplace_back(kLeftOut, "yes");
  state = {};
  note.files = {mine};
  try {
    write_text(note_in(draft, mine.worker), to_json(note));
  } catch (const Error& error) {
    failed_unsaid = true;
    warn(reason.empty() ? error.what() : reason);
  }
}

std::optional<Manifest> CheckpointWriter::Attempt::read_note(int worker) const {
  const std::string path = note_in(draft_folder(root, manifest.step), worker);
  try {
    if (!fs::exists(path)) return std::nullopt;
    Manifest note = parse_manifest(read_text(path, kMostNote), path);
    const bool mine = note.files.size() == 1 && note.files.front().worker == worker && !note.recipe.empty() &&
                      note.recipe.front() == std::pair<std::string, std::string>(kAttempt, name());
    return mine ? std::optional(std::move(note)) : std::nullopt;
  } catch (const std::exception&) {  // a file that is just being replaced, or an earlier one
    return std::nullopt;
  }
}

// Waits for the notes. Returns whether all files are there that can be.
bool CheckpointWriter::Attempt::collect() {
  std::string failure;
  while (true) {
    for (auto worker = missing.begin(); worker != missing.end();) {
      const auto note = read_note(*worker);
      if (!note) {
        ++worker;
        continue;
      }
      const auto& [word, reason] = note->recipe.back();
      if (word == kFailed && failure.empty()) failure = reason;
      if (word == kAttempt) manifest.files.push_back(note->files.front());
      worker = missing.erase(worker);
    }
    std::unique_lock lock(mutex);
    for (const int worker : gone) missing.erase(worker);
    if (unsaid) return false;
    if (missing.empty()) break;
    if (ends && Clock::now() >= *ends) {
      lock.unlock();
      warn(fmt::format("the file of worker {} did not come in time; all workers must see the same folder",
                       *missing.begin()));
      return false;
    }
    changed.wait_for(lock, kPoll);
  }
  std::ranges::sort(manifest.files, {}, &WorkerFile::worker);
  if (failure.empty() && manifest.files.empty()) failure = "no worker has written its file";
  if (!failure.empty()) warn(failure);
  return failure.empty();
}

bool CheckpointWriter::Attempt::commit() {
  const FailpointStep of(manifest.step);
  const std::string latest = latest_in(root);
  if (collect()) {
    try {
      // If this worker stood still, the others may have committed a later one.
      if (latest_in(root) != latest) throw Error("another worker has committed one since");
      commit_checkpoint(root, manifest, keep);
      return true;
    } catch (const Error& error) {
      warn(error.what());
    }
  }
  drop_checkpoint(root, manifest.step);
  return false;
}

CheckpointWriter::CheckpointWriter(Optimizer& optimizer, std::string root, int keep)
    : optimizer_(optimizer), root_(std::move(root)), keep_(keep) {}

CheckpointWriter::~CheckpointWriter() = default;

// Collective. Returns what all workers said: by rank their words, then the slots. Empty:
// the others went on without this worker. Tells the last attempt who will not come any more.
std::vector<std::int64_t> CheckpointWriter::meet(double waited, double trained) {
  const World& world = optimizer_.world();
  const auto size = static_cast<std::size_t>(world.size);
  std::vector<std::int64_t> all(size + kSlots);
  all[static_cast<std::size_t>(world.rank)] =
      !last_ ? kNoAttempt : last_->number + (last_->failed_unsaid ? 1 : 0);
  all[size + kWaited] = std::llround(waited * kMicro);
  all[size + kNumber] = new_id() & ~std::int64_t{1};
  all[size + kTrained] = std::llround(trained * kMicro);
  const bool here = optimizer_.maximum(all) > 0;
  if (last_) {
    last_->tell([&] {
      for (int r = 0; here && r < world.size; ++r) {
        const std::int64_t said = all[static_cast<std::size_t>(r)];
        if (said == last_->number + 1) {
          last_->unsaid = true;
        } else if (said != last_->number) {
          last_->gone.insert(r);
        }
      }
      last_->ends = Clock::now() + kToAppear;
    });
  }
  return here ? all : std::vector<std::int64_t>();
}

// Returns the seconds that it took.
double CheckpointWriter::wait_until_written() {
  const Time begin = Clock::now();
  if (!last_) return 0;
  std::chrono::seconds pause = kSayWaits;
  while (last_->written.wait_for(pause) != std::future_status::ready) {
    optimizer_.world().log(
        Level::warning,
        fmt::format("this worker's disk has not written the checkpoint of step {}: waiting since {:.0f} s",
                    last_->manifest.step, seconds(Clock::now() - begin)));
    pause = std::min<std::chrono::seconds>(2 * pause, kSayMostSeldom);
  }
  return seconds(Clock::now() - begin);
}

bool CheckpointWriter::save(const Manifest& progress, std::optional<std::int64_t> mine) {
  failpoint("checkpoint");
  const World& world = optimizer_.world();
  const double waited = wait_until_written();

  const Operation operation(optimizer_);
  optimizer_.wait_for_all();
  const bool counts = optimizer_.counts(/*waits=*/true);
  OptimizerState state;
  std::string reason;
  try {
    if (counts) state = optimizer_.state();
    copy_shared(state);
  } catch (const std::exception& error) {  // no memory; what torch's optimizer keeps cannot be saved
    reason = one_line(error);
  }
  auto next = std::make_shared<Attempt>(root_, keep_, progress, world);
  next->manifest.workers = world.size;
  next->manifest.files.clear();
  const auto all = meet(waited, progress.seconds);
  if (all.empty()) {
    world.log(Level::warning, fmt::format("no checkpoint of step {} here: the other workers went on without "
                                          "this one while it was away",
                                          progress.step));
    return false;
  }
  const auto size = static_cast<std::size_t>(world.size);
  next->number = all[size + kNumber];
  next->manifest.seconds = static_cast<double>(all[size + kTrained]) / kMicro;
  for (int r = 0; r < world.size; ++r)
    if (all[static_cast<std::size_t>(r)] != 0) next->missing.insert(r);
  const bool commits = *next->missing.begin() == world.rank;
  const std::int64_t longest = all[size + kWaited];
  if (commits && last_ && longest > kLongWait)
    world.log(
        Level::warning,
        fmt::format("the checkpoint of step {} waited {:.1f} s until that of step {} was written: the disk "
                    "is slower than they come",
                    progress.step, static_cast<double>(longest) / kMicro, last_->manifest.step));
  if (!counts)
    world.log(Level::warning, fmt::format("the checkpoint of step {} has no file of this worker, whose "
                                          "parameters are far from most neighbours'",
                                          progress.step));
  const WorkerFile file{.worker = world.rank, .step = mine.value_or(progress.step)};
  Attempt* const now = next.get();  // which waits for its threads
  now->written =
      std::async(std::launch::async, [now, file, reason, counts, state = std::move(state)]() mutable {
        now->write(std::move(state), file, reason, counts);
      });
  if (commits)
    now->committed = std::async(std::launch::async, [now, before = last_]() mutable {
      if (before && before->committed.valid()) before->committed.wait();  // one after the other
      before.reset();
      return now->commit();
    });
  last_ = std::move(next);
  return true;
}

bool CheckpointWriter::finish() {
  wait_until_written();
  const Operation operation(optimizer_);
  meet(0, 0);
  std::int64_t committed = last_ && last_->committed.valid() && last_->committed.get() ? 1 : 0;
  optimizer_.maximum({&committed, 1});
  last_.reset();
  return committed != 0;
}

}  // namespace starling
