// The launcher's environment variables: this worker's rank, the number of workers, and the address
// of rank 0. Pure functions of the variables; World::from_environment() acts on them.
//
// With nested launchers, Starling uses the innermost: the one that started this process.
//
//   launcher   recognized by            reads
//   torchrun   RANK or WORLD_SIZE       RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
//                                       MASTER_ADDR, MASTER_PORT; `starling train --workers N`
//                                       sets the first four and STARLING_STORE_FOLDER
//   mpirun     OMPI_COMM_WORLD_RANK     Open MPI: OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}
//   srun       SLURM_STEP_ID and        SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_NODEID,
//              SLURM_PROCID             SLURM_STEP_TASKS_PER_NODE
//   PMI        PMI_RANK                 MPICH, Intel MPI, Cray: PMI_SIZE, MPI_LOCALRANKID and
//                                       MPI_LOCALNRANKS, or PMI_LOCAL_RANK and PMI_LOCAL_SIZE
//
// A PMI launcher inside a job step (mpiexec starts its helpers by srun) is recognized by a number
// of workers that differs from the step's. WORLD_SIZE without RANK, which job scripts often export,
// counts only if there is no other launcher. SLURM_NTASKS never gives the number of workers,
// because a script, a shell or a helper inside an allocation inherits it.
//
// STARLING_STORE_FOLDER names a folder, in which workers of one host meet in place of a port.
// STARLING_RESTARTS says how often this worker has been started before, STARLING_REJOIN=1 that such
// a worker joins the others (World::rejoin): `starling train --workers N --restart` sets both.
// STARLING_INITIAL_SIZE=M says that the run begins with ranks 0 to M - 1, and that the others join
// it later (World::initial_size).
// STARLING_PARTITION=pause makes a worker wait that is cut off (World::partition).
// STARLING_SILENT is the timeout of a worker that shows no life (Timeouts::silent).
// STARLING_FAIL makes workers fail (core/failpoint.h).
//
// MASTER_ADDR and MASTER_PORT apply with every launcher. Without them all launchers but torchrun
// have a default:
//
//   address    all workers on one host: 127.0.0.1. Else srun: the first host of
//              SLURM_STEP_NODELIST. mpirun: its own host, if it names one IPv4 address and rank 0
//              runs there. PMI: unknown, an error
//   port       16384 + h % 16384, below the ephemeral ports of Linux. srun: h = 37 SLURM_JOB_ID +
//              SLURM_STEP_ID, which differs between consecutive jobs. Else h = a hash of
//              PMIX_NAMESPACE (mpirun) or PMI_JOBID; an error without PMI_JOBID
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace starling {

// The value of a variable; nothing if it is unset or empty.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
Variables process_variables();

// Throws UsageError for a variable whose name is nearly that of one of Starling's settings, such as
// STARLING_TOKN: without this check it would be ignored. `names` are the names of all variables.
void refuse_misspelt(const std::vector<std::string>& names);
std::vector<std::string> process_variable_names();

inline constexpr const char* kStoreFolder = "STARLING_STORE_FOLDER";

// STARLING_RESTARTS; 0 if it is not set. Throws UsageError if it is no number.
int restarts_of(const Variables& variable);

struct Launch {
  std::string launcher;  // "torchrun", "mpirun", "srun" or "PMI"
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string host;  // of the store; an IPv6 address without brackets
  // The source of `host` for messages: MASTER_ADDR, SLURM_STEP_NODELIST, ...
  std::string host_from;
  int port = 0;                 // of the store
  std::string store_folder;     // the store, in place of host and port; empty: there is none
  bool launcher_hosts = false;  // the launcher hosts the store; otherwise rank 0 does
  std::string run;              // tells runs apart that meet at one store
};

// "torchrun", "mpirun", "srun", "PMI", or "" if no launcher started this process.
std::string launcher_name(const Variables& variable);

// Nothing if no launcher started this process. Throws UsageError, naming the variable, if one is
// missing or wrong, or if the address or the port cannot be determined. It also throws in a SLURM
// allocation of several tasks outside a job step, where a single worker would be a mistake.
std::optional<Launch> read_launch(const Variables& variable);

// For SLURM's lists. The first host of "node[001-003,7],other-2" is node001; in "2(x3),1", tasks
// per node, node 3 has 1. Both throw UsageError and name the variable of the list.
std::string first_host(const std::string& list, const std::string& from);
int tasks_on_node(const std::string& list, int node, const std::string& from);

}  // namespace starling
