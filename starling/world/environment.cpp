#include "starling/world/environment.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling {
namespace {

constexpr int kMostWorkers = 1 << 20;

// The variables of one launcher.
class VariableReader {
 public:
  VariableReader(const Variables& variable, std::string launcher)
      : variable_(variable), launcher_(std::move(launcher)) {}

  std::optional<std::string> optional(const std::string& name) const { return variable_(name); }

  std::string text(const std::string& name) const {
    if (const auto value = variable_(name)) return *value;
    if (launcher_ == "torchrun") {
      throw UsageError(
          fmt::format("environment: {} is not set: start the workers with torchrun or with "
                      "`starling train --workers N`, which set RANK, WORLD_SIZE, LOCAL_RANK, "
                      "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                      name));
    }
    throw UsageError(
        fmt::format("environment: {} is not set, but other variables of {} are", name, launcher_));
  }

  int integer(const std::string& name, int least, int most) const {
    const std::string value = text(name);
    const auto number = parse_number<int>(value);
    if (!number || *number < least || *number > most)
      throw UsageError(
          fmt::format("environment: {}='{}' is not an integer from {} to {}", name, value, least, most));
    return *number;
  }

  Launch in_world(const char* rank, const char* size) const {
    Launch launch;
    launch.launcher = launcher_;
    launch.size = integer(size, 1, kMostWorkers);
    launch.rank = integer(rank, 0, launch.size - 1);
    return launch;
  }

  Launch in_world(const char* rank, const char* size, const char* local_rank, const char* local_size) const {
    Launch launch = in_world(rank, size);
    launch.local_size = integer(local_size, 1, launch.size);
    launch.local_rank = integer(local_rank, 0, launch.local_size - 1);
    return launch;
  }

  void know_master(Launch& launch) const {
    launch.host_from = "MASTER_ADDR";
    launch.host = text(launch.host_from);
    if (launch.host.size() > 2 && launch.host.front() == '[' && launch.host.back() == ']')
      launch.host = launch.host.substr(1, launch.host.size() - 2);  // [::1]
  }

  // MASTER_ADDR, or loopback if that reaches all workers; false if neither is available.
  bool know_host(Launch& launch) const {
    if (optional("MASTER_ADDR")) {
      know_master(launch);
    } else if (launch.local_size == launch.size) {
      launch.host = "127.0.0.1";
      launch.host_from = launcher_ + " on one host";
    }
    return !launch.host.empty();
  }

  // MASTER_PORT, or a port of the job's own.
  int port(std::uint64_t job) const {
    if (optional("MASTER_PORT")) return integer("MASTER_PORT", 1, 65535);
    return static_cast<int>(16384 + job % 16384);
  }

 private:
  const Variables& variable_;
  std::string launcher_;
};

[[noreturn]] void refuse_unknown(const std::string& what, const char* name, const std::string& how) {
  throw UsageError(fmt::format("environment: {}: set {}, the same for all workers ({})", what, name, how));
}

// FNV-1a: the same on every host.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// The port of a job with a name in the variable `name`.
void know_job(const VariableReader& read, Launch& launch, const char* name, const std::string& how) {
  launch.run = read.optional(name).value_or("");
  if (launch.run.empty() && !read.optional("MASTER_PORT"))
    refuse_unknown(fmt::format("{} is not set, so that no port can be derived from it", name), "MASTER_PORT",
                   how);
  launch.port = read.port(hash_of(launch.run));
}

Launch of_torchrun(const VariableReader& read) {
  Launch launch = read.in_world("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  launch.store_folder = read.optional(kStoreFolder).value_or("");
  if (!launch.store_folder.empty()) {
    if (launch.local_size != launch.size)
      throw UsageError(
          fmt::format("environment: {}='{}' is for workers of one host, but LOCAL_WORLD_SIZE='{}' of {}",
                      kStoreFolder, launch.store_folder, launch.local_size, launch.size));
    launch.host = "127.0.0.1";
    launch.host_from = kStoreFolder;
    return launch;
  }
  read.know_master(launch);
  launch.port = read.integer("MASTER_PORT", 1, 65535);
  // As torch's own rendezvous does: torchrun hosts the store unless told otherwise, and a restart
  // must not find the keys of the last attempt.
  launch.launcher_hosts = read.optional("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.run = read.optional("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return launch;
}

// The host of "1058537472.0;tcp://192.0.2.2:33597;tcp6://[fd00::2]:40293", if it is one IPv4
// address.
std::optional<std::string> only_address(const std::string& uri) {
  constexpr std::string_view kScheme = ";tcp://";
  const std::size_t start = uri.find(kScheme);
  if (start == std::string::npos) return std::nullopt;
  const std::string after = uri.substr(start + kScheme.size());
  const std::string host = after.substr(0, after.find(':'));
  if (host.empty() || host.find(',') != std::string::npos) return std::nullopt;
  return host;
}

Launch of_mpirun(const VariableReader& read) {
  Launch launch = read.in_world("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                "OMPI_COMM_WORLD_LOCAL_SIZE");
  if (!read.know_host(launch)) {
    // The URI of mpirun itself.
    const std::string uri = read.optional("OMPI_MCA_orte_hnp_uri").value_or("");
    const auto host = only_address(uri);
    const bool elsewhere = launch.rank == 0 && read.optional("OMPI_MCA_orte_local_daemon_uri") != uri;
    if (!host || elsewhere)
      refuse_unknown("mpirun does not say on which host rank 0 runs", "MASTER_ADDR",
                     "mpirun -x MASTER_ADDR=HOST");
    launch.host = *host;
    launch.host_from = "OMPI_MCA_orte_hnp_uri";
  }
  know_job(read, launch, "PMIX_NAMESPACE", "mpirun -x MASTER_PORT=29500");
  return launch;
}

Launch of_srun(const VariableReader& read) {
  Launch launch = read.in_world("SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
  const char* const kTasks = "SLURM_STEP_TASKS_PER_NODE";
  const int node = read.integer("SLURM_NODEID", 0, launch.size - 1);
  launch.local_size = tasks_on_node(read.text(kTasks), node, kTasks);
  launch.local_rank = read.integer("SLURM_LOCALID", 0, launch.local_size - 1);
  if (!read.know_host(launch)) {
    launch.host_from = "SLURM_STEP_NODELIST";
    launch.host = first_host(read.text(launch.host_from), launch.host_from);
    if (launch.rank == 0 && node != 0)
      refuse_unknown("task 0 does not run on the first host of SLURM_STEP_NODELIST", "MASTER_ADDR",
                     "export it before srun");
  }
  constexpr int kMost = std::numeric_limits<int>::max();
  const int job = read.integer("SLURM_JOB_ID", 0, kMost), step = read.integer("SLURM_STEP_ID", 0, kMost);
  launch.run = fmt::format("{}.{}", job, step);
  launch.port = read.port(37 * static_cast<std::uint64_t>(job) + static_cast<std::uint64_t>(step));
  return launch;
}

Launch of_pmi(const VariableReader& read) {
  const bool hydra = read.optional("MPI_LOCALNRANKS").has_value();
  Launch launch = read.in_world("PMI_RANK", "PMI_SIZE", hydra ? "MPI_LOCALRANKID" : "PMI_LOCAL_RANK",
                                hydra ? "MPI_LOCALNRANKS" : "PMI_LOCAL_SIZE");
  if (!read.know_host(launch))
    refuse_unknown("the PMI launcher does not say on which host rank 0 runs", "MASTER_ADDR",
                   "mpiexec -genv MASTER_ADDR HOST");
  know_job(read, launch, "PMI_JOBID", "mpiexec -genv MASTER_PORT 29500");
  return launch;
}

}  // namespace

Variables process_variables() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (!value || !*value) return std::nullopt;
    return value;
  };
}

void refuse_misspelt(const std::vector<std::string>& names) {
  constexpr std::string_view kPrefix = "STARLING_";
  // Other programs may have variables with this prefix too, so only the part after it is compared,
  // and strictly.
  static const std::vector<std::string> known{
      "TOKEN",  "TOKEN_FILE",   "STORE_FOLDER", "TRANSPORT", "SOCKET_IFNAME", "LOG",  "ISA",      "NVRTC",
      "CACHE",  "LAUNCHER_PID", "REJOIN",       "RESTARTS",  "FAIL",          "TLS",  "TLS_CERT", "TLS_KEY",
      "TLS_CA", "INITIAL_SIZE", "PARTITION",    "PYTHON",    "SILENT",        "GRACE"};
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix)) continue;
    const std::string own = name.substr(kPrefix.size());
    const std::string nearest = nearest_name(own, known, std::max<std::size_t>(1, own.size() / 4));
    if (nearest.empty() || nearest == own) continue;
    throw UsageError(fmt::format("environment: {} is unknown, did you mean {}{}?", name, kPrefix, nearest));
  }
}

std::vector<std::string> process_variable_names() {
  std::vector<std::string> names;
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string_view text = *line;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

std::string launcher_name(const Variables& variable) {
  if (variable("RANK")) return "torchrun";
  if (variable("OMPI_COMM_WORLD_RANK")) return "mpirun";
  // The shell of an allocation may be a step too; its number does not fit an int.
  const bool srun = variable("SLURM_PROCID") && parse_number<int>(variable("SLURM_STEP_ID").value_or(""));
  if (variable("PMI_RANK") && !(srun && variable("PMI_SIZE") == variable("SLURM_STEP_NUM_TASKS")))
    return "PMI";
  if (srun) return "srun";
  return variable("WORLD_SIZE") ? "torchrun" : "";
}

int restarts_of(const Variables& variable) {
  const char* const kRestarts = "STARLING_RESTARTS";
  if (!variable(kRestarts)) return 0;
  return VariableReader(variable, "").integer(kRestarts, 0, std::numeric_limits<int>::max());
}

std::optional<Launch> read_launch(const Variables& variable) {
  const std::string launcher = launcher_name(variable);
  const VariableReader read(variable, launcher);
  if (launcher == "torchrun") return of_torchrun(read);
  if (launcher == "mpirun") return of_mpirun(read);
  if (launcher == "srun") return of_srun(read);
  if (launcher == "PMI") return of_pmi(read);
  const auto tasks = variable("SLURM_NTASKS");
  if (tasks && parse_number<int>(*tasks) != 1) {
    throw UsageError(fmt::format(
        "environment: SLURM_NTASKS='{}', but this is no task of a job step: start the workers "
        "with srun, or with `starling train --workers N`; for one worker alone unset SLURM_NTASKS",
        *tasks));
  }
  return std::nullopt;
}

std::string first_host(const std::string& list, const std::string& from) {
  const auto refuse = [&](const char* why) {
    throw UsageError(fmt::format("environment: {}='{}': {}", from, list, why));
  };
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const std::size_t close = list.find(']', at);
    if (close == std::string::npos) refuse("a bracket is not closed");
    const std::size_t end = list.find_first_not_of("0123456789", at + 1);
    if (end == at + 1 || (list[end] != '-' && list[end] != ',' && list[end] != ']'))
      refuse("no number follows a bracket");
    host.append(list, at + 1, end - (at + 1));
    at = close + 1;
  }
  if (host.empty() || host.find(']') != std::string::npos) refuse("is no list of hosts");
  return host;
}

int tasks_on_node(const std::string& list, int node, const std::string& from) {
  std::string_view rest = list;
  for (int nodes = 0; !rest.empty();) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    int times = 1;
    if (const std::size_t bracket = item.find("(x");
        bracket != std::string_view::npos && item.ends_with(')')) {
      times = parse_number<int>(item.substr(bracket + 2, item.size() - bracket - 3)).value_or(0);
      item = item.substr(0, bracket);
    }
    const auto tasks = parse_number<int>(item);
    if (!tasks || *tasks < 1 || times < 1 || times > kMostWorkers) break;
    nodes += times;
    if (node < nodes) return *tasks;
  }
  throw UsageError(
      fmt::format("environment: {}='{}' does not have the number of tasks on node {}", from, list, node));
}

}  // namespace starling
