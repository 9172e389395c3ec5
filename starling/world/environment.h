// What the launcher that started this process says in environment variables: who am I, how many are we, where does
// rank 0 wait. Pure functions of the variables; World::from_environment() does what follows from them.
//
// Of several launchers the innermost is obeyed, the one that started this very process:
//
//   torchrun   RANK or WORLD_SIZE       RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
//                                       `starling train --workers N` sets them too
//   mpirun     OMPI_COMM_WORLD_RANK     Open MPI: OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}
//   srun       SLURM_STEP_ID and        SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_NODEID,
//              SLURM_PROCID             SLURM_STEP_TASKS_PER_NODE
//   PMI        PMI_RANK                 MPICH, Intel MPI, Cray: PMI_SIZE, MPI_LOCALRANKID and MPI_LOCALNRANKS, or
//                                       PMI_LOCAL_RANK and PMI_LOCAL_SIZE
//
// A PMI launcher inside a job step (mpiexec starts its helpers by srun) is known by another number of workers than the
// step's. WORLD_SIZE without RANK, which job scripts like to export, counts only where no other launcher is seen.
// SLURM_NTASKS is not asked for the number of workers: a script, a shell or a helper inside an allocation inherits it.
//
// MASTER_ADDR and MASTER_PORT are obeyed with every launcher. Without them all but torchrun have their own:
//
//   address    all workers on one host: 127.0.0.1. Else srun: the first host of SLURM_STEP_NODELIST. mpirun: its own
//              host, where it names one IPv4 address and rank 0 runs there. PMI: unknown, an error
//   port       16384 + h % 16384, below the ports that Linux hands out by itself. srun: h = 37 SLURM_JOB_ID +
//              SLURM_STEP_ID, which differs for jobs that follow each other; else h = a hash of PMIX_NAMESPACE (mpirun)
//              or PMI_JOBID, and without PMI_JOBID an error
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace starling {

// The value of a variable; nothing where it is not set or empty.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
Variables process_variables();

struct Launch {
  std::string launcher;  // "torchrun", "mpirun", "srun" or "PMI"
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string host;             // where the store is
  std::string host_from;        // what says so, for messages: MASTER_ADDR, SLURM_STEP_NODELIST, ...
  int port = 0;                 // of the store
  bool launcher_hosts = false;  // the store; else rank 0 does
  std::string run;              // tells runs apart, should they meet at one store
};

// "torchrun", "mpirun", "srun", "PMI", or "" where no launcher started this process.
std::string launcher_name(const Variables& variable);

// Nothing: no launcher started this process. Throws UsageError, naming the variable, where one is missing or wrong,
// where the address or the port cannot be known, and in a SLURM allocation of several tasks outside a job step: one
// worker alone is not what was asked for there.
std::optional<Launch> read_launch(const Variables& variable);

// Of SLURM's lists: the first host of "node[001-003,7],other-2" is node001; of "2(x3),1", tasks per node, node 3 has 1.
// Throw UsageError, naming the variable that the list comes from.
std::string first_host(const std::string& list, const std::string& from);
int tasks_on_node(const std::string& list, int node, const std::string& from);

}  // namespace starling
