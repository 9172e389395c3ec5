#include "starling/core/phases.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <type_traits>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/core/host.h"

namespace starling {

namespace {

constexpr char kKind[16] = "starling phases";
constexpr int kMostWorkers = 1 << 20;
constexpr std::int64_t kMostStep = std::int64_t{1} << 48;

std::string path_of(const std::string& folder, int rank) { return fmt::format("{}/worker-{}", folder, rank); }

// As much of the name as a sheet holds.
std::array<char, 64> short_host_name() {
  std::array<char, 64> name{};
  host_name().copy(name.data(), name.size() - 1);
  return name;
}

struct flock whole_file() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

struct PhaseBoard::Sheet {
  struct Mark {
    std::int64_t phase;  // step * 256 + the phase's index + 1; 0: none
    double since;
  };
  char kind[sizeof kKind];
  std::int32_t rank, workers, restarts, is_locked;
  std::int64_t pid;
  double begin;
  std::array<char, 64> host;
  std::array<Mark, kPhaseThreads> marks;
};
static_assert(std::is_trivially_copyable_v<PhaseBoard::Sheet>);

PhaseBoard::PhaseBoard(const std::string& folder, const PhaseOwner& owner) {
  const std::string path = path_of(folder, owner.rank);
  const auto fail = [&](const char* what, int why) {
    throw Error(fmt::format("{}: cannot be {}: {}", path, what, std::strerror(why)));
  };
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(fmt::format("{}: cannot be made: {}", folder, error.message()));
  file_ = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (file_.get() < 0) fail("opened", errno);
  struct flock lock = whole_file();
  Sheet sheet{.kind = {},
              .rank = owner.rank,
              .workers = owner.workers,
              .restarts = owner.restarts,
              .is_locked = fcntl(file_.get(), F_SETLK, &lock) == 0 ? 1 : 0,
              .pid = getpid(),
              .begin = unix_seconds(),
              .host = short_host_name(),
              .marks = {}};
  std::ranges::copy(kKind, sheet.kind);
  // Written, not only made longer: a disk that is full later is no matter to the mapping.
  const ssize_t written = pwrite(file_.get(), &sheet, sizeof sheet, 0);
  if (written != sizeof sheet) fail("written", written < 0 ? errno : ENOSPC);
  void* const place = mmap(nullptr, sizeof(Sheet), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (place == MAP_FAILED) fail("mapped", errno);
  sheet_ = static_cast<Sheet*>(place);
}

PhaseBoard::~PhaseBoard() { munmap(sheet_, sizeof(Sheet)); }

void PhaseBoard::mark(PhaseThread thread, std::size_t phase, std::int64_t step) {
  Sheet::Mark& mark = sheet_->marks[static_cast<std::size_t>(thread)];
  // In this order: for a reader between the two, the phase before began just now.
  std::atomic_ref(mark.since).store(unix_seconds(), std::memory_order_relaxed);
  std::atomic_ref(mark.phase)
      .store(step * 256 + static_cast<std::int64_t>(phase) + 1, std::memory_order_release);
}

std::string WorkerPhases::text() const {
  std::string all;
  for (const auto& [thread, name] : {std::pair{PhaseThread::training, ""},
                                     {PhaseThread::transport, "transport: "},
                                     {PhaseThread::writer, "checkpoint: "}}) {
    if (const auto& phase = of(thread))
      all += fmt::format("{}{}{} of step {}", all.empty() ? "" : ", ", name, phase->name, phase->step);
  }
  return all;
}

std::optional<WorkerPhases> read_phases(const std::string& folder, int rank) {
  const Descriptor file(open(path_of(folder, rank).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  PhaseBoard::Sheet sheet, again;
  const auto read = [&](PhaseBoard::Sheet& to) {
    return pread(file.get(), &to, sizeof to, 0) == static_cast<ssize_t>(sizeof to);
  };
  // Twice the same: no mark was written in between. A busy transport thread may write on and on.
  constexpr int kTries = 10;
  if (!read(again)) return std::nullopt;
  for (int k = 0; k < kTries; ++k) {
    sheet = again;
    if (!read(again)) return std::nullopt;
    if (std::memcmp(&sheet, &again, sizeof sheet) == 0) break;
  }
  if (std::memcmp(sheet.kind, kKind, sizeof kKind) != 0 || sheet.rank != rank || sheet.workers < 1 ||
      sheet.workers > kMostWorkers || sheet.restarts < 0 || !(sheet.begin >= 0 && sheet.begin < 1e12))
    return std::nullopt;
  sheet.host.back() = 0;
  WorkerPhases worker{.owner = {rank, sheet.workers, sheet.restarts},
                      .host = sheet.host.data(),
                      .pid = sheet.pid,
                      .begin = sheet.begin,
                      .phases = {}};
  for (std::size_t thread = 0; thread < kPhaseThreads; ++thread) {
    const auto& [word, since] = sheet.marks[thread];
    const std::int64_t phase = word % 256 - 1, step = word / 256;
    if (phase < 0 || phase >= std::ssize(FailPhase::kNames) || step > kMostStep ||
        !(since >= 0 && since < 1e12))
      continue;
    worker.phases[thread] = {std::string(FailPhase::kNames[phase]), step, since};
  }
  struct flock lock = whole_file();
  const bool asked = fcntl(file.get(), F_GETLK, &lock) == 0;
  if (asked && lock.l_type != F_UNLCK) {
    worker.process = WorkerPhases::Process::running;
  } else if (asked && sheet.is_locked == 1 && sheet.host == short_host_name()) {
    worker.process = WorkerPhases::Process::gone;
  }
  return worker;
}

}  // namespace starling
