// Launchers' variables. These are the ones that torchrun, Debian's mpirun (Open MPI 4.1), mpiexec
// (MPICH 4.0) and srun (SLURM 22.05) really set, apart from hosts and numbers.
#include "starling/world/environment.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "tests/refusal.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;
using Map = std::map<std::string, std::string>;

Variables in(const Map& map) {
  return [map](const std::string& name) -> std::optional<std::string> {
    const auto found = map.find(name);
    if (found == map.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

Map operator+(Map some, const Map& others) {
  for (const auto& [name, value] : others) some[name] = value;
  return some;
}

std::string why_not(const Map& map) {
  const std::string said = refusal<UsageError>([&] { read_launch(in(map)); });
  EXPECT_THAT(said, AnyOf("accepted", AllOf(testing::StartsWith("environment: "), Not(HasSubstr("\n")))));
  return said;
}

// "srun 5/6 1/2 node001:16421 (SLURM_STEP_NODELIST) 1.0"
std::string read(const Map& map) {
  const std::optional<Launch> launch = read_launch(in(map));
  if (!launch) return "nothing";
  const auto of = [](int rank, int size) { return std::to_string(rank) + "/" + std::to_string(size); };
  return launch->launcher + " " + of(launch->rank, launch->size) + " " +
         of(launch->local_rank, launch->local_size) + " " + launch->host + ":" +
         std::to_string(launch->port) + " (" + launch->host_from + ") " + launch->run +
         (launch->launcher_hosts ? " hosted" : "");
}

const Map kTorchrun{{"RANK", "5"},
                    {"WORLD_SIZE", "6"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "head"},
                    {"MASTER_PORT", "29400"},
                    {"TORCHELASTIC_RESTART_COUNT", "2"},
                    {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

// mpirun -H hosta:1,hostb:2 -n 3, rank 2
const Map kMpirun{{"OMPI_COMM_WORLD_RANK", "2"},
                  {"OMPI_COMM_WORLD_SIZE", "3"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                  {"PMIX_NAMESPACE", "997720065"},
                  {"OMPI_MCA_orte_hnp_uri", "997720064.0;tcp://192.0.2.2:39679;tcp6://[fd00::2]:47767"},
                  {"OMPI_MCA_orte_local_daemon_uri", "997720064.2;tcp://192.0.2.3:44753"}};
const Map kMpirunOneHost{{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};

// srun -n 6 on three nodes, task 4
const Map kSrun{{"SLURM_JOB_ID", "1"},
                {"SLURM_STEP_ID", "0"},
                {"SLURM_PROCID", "4"},
                {"SLURM_LOCALID", "1"},
                {"SLURM_NODEID", "1"},
                {"SLURM_NTASKS", "6"},
                {"SLURM_STEP_NUM_TASKS", "6"},
                {"SLURM_STEP_TASKS_PER_NODE", "3,2,1"},
                {"SLURM_STEP_NODELIST", "node[001-003]"}};

const Map kMpiexec{{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "3"}};

TEST(Environment, WithoutALauncherSaysNothing) {
  EXPECT_EQ(read({}), "nothing");
  EXPECT_EQ(read({{"RANK", ""}, {"MASTER_ADDR", "head"}, {"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "1"}}),
            "nothing");
}

TEST(Environment, OfTorchrun) {
  EXPECT_EQ(read(kTorchrun), "torchrun 5/6 1/2 head:29400 (MASTER_ADDR) 2 hosted");
  EXPECT_EQ(
      read(kTorchrun + Map{{"TORCHELASTIC_USE_AGENT_STORE", "False"}, {"TORCHELASTIC_RESTART_COUNT", ""}}),
      "torchrun 5/6 1/2 head:29400 (MASTER_ADDR) 0");
}

TEST(Environment, AnIPv6AddressMayStandInBrackets) {
  EXPECT_EQ(read(kTorchrun + Map{{"MASTER_ADDR", "[::1]"}}),
            "torchrun 5/6 1/2 ::1:29400 (MASTER_ADDR) 2 hosted");
  EXPECT_EQ(read(kTorchrun + Map{{"MASTER_ADDR", "fd00::2"}}),
            "torchrun 5/6 1/2 fd00::2:29400 (MASTER_ADDR) 2 hosted");
  EXPECT_THAT(read(kMpirun + Map{{"MASTER_ADDR", "[fd00::2]"}}), HasSubstr(" fd00::2:"));
}

TEST(Environment, ValuesThatWouldBreakALineAreEscaped) {
  EXPECT_THAT(why_not(kTorchrun + Map{{"RANK", "5\n\x1b[31m"}}),
              HasSubstr("RANK='5\\u000A\\u001B[31m' is not"));
}

TEST(Environment, MisspeltSettingsAreNamed) {
  const auto said = [](const std::string& name) {
    return refusal<UsageError>([&] { refuse_misspelt({"PATH", "STARLING", name}); });
  };
  for (const auto& [name, meant] :
       std::vector<std::pair<std::string, std::string>>{{"STARLING_TOKN", "STARLING_TOKEN"},
                                                        {"STARLING_TOKENFILE", "STARLING_TOKEN_FILE"},
                                                        {"STARLING_TRANSPROT", "STARLING_TRANSPORT"},
                                                        {"STARLING_SOCKET_IFNAMES", "STARLING_SOCKET_IFNAME"},
                                                        {"STARLING_RESTART", "STARLING_RESTARTS"},
                                                        {"STARLING_FAILS", "STARLING_FAIL"},
                                                        {"STARLING_TLS_CRT", "STARLING_TLS_CERT"},
                                                        {"STARLING_PYTHN", "STARLING_PYTHON"},
                                                        {"STARLING_LOGS", "STARLING_LOG"}}) {
    EXPECT_EQ(said(name), "environment: " + name + " is unknown, did you mean " + meant + "?");
  }
  // Variables of other programs, and right ones.
  for (const char* name :
       {"STARLING_JOB", "STARLING_ID", "STARLING_DATA_DIR", "STARLING_GOLDEN_FILE", "STARLING_TEST_STEPS",
        "STARLING_FUZZ_RUNS", "STARLING_TOKEN", "STARLING_ISA", "STARLING_", "XSTARLING_TOKN"}) {
    EXPECT_EQ(said(name), "accepted");
  }
}

TEST(Environment, RestartsAreANumber) {
  EXPECT_EQ(restarts_of(in({})), 0);
  EXPECT_EQ(restarts_of(in({{"STARLING_RESTARTS", "2"}})), 2);
  EXPECT_THAT(refusal<UsageError>([] { restarts_of(in({{"STARLING_RESTARTS", "-1"}})); }),
              HasSubstr("environment: STARLING_RESTARTS='-1' is not an integer from 0 to "));
}

TEST(Environment, OfMpirun) {
  EXPECT_EQ(read(kMpirun), "mpirun 2/3 1/2 192.0.2.2:26876 (OMPI_MCA_orte_hnp_uri) 997720065");
  EXPECT_EQ(read(kMpirun + kMpirunOneHost), "mpirun 2/3 2/3 127.0.0.1:26876 (mpirun on one host) 997720065");
  EXPECT_EQ(read(kMpirun + Map{{"MASTER_ADDR", "hosta"}, {"MASTER_PORT", "29500"}, {"PMIX_NAMESPACE", ""}}),
            "mpirun 2/3 1/2 hosta:29500 (MASTER_ADDR) ");
}

// Only rank 0 knows whether mpirun runs on its host.
TEST(Environment, MpirunsHostIsTakenOnlyWhereItIsRankZeros) {
  const Map first = kMpirun + Map{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};
  EXPECT_THAT(why_not(first),
              AllOf(HasSubstr("on which host rank 0 runs"), HasSubstr("-x MASTER_ADDR=HOST")));
  EXPECT_THAT(read(first + Map{{"OMPI_MCA_orte_local_daemon_uri", first.at("OMPI_MCA_orte_hnp_uri")}}),
              HasSubstr("192.0.2.2"));
  for (const char* unclear :
       {"", "1.0", "1.0;tcp://192.0.2.2,172.17.0.1:39679", "1.0;tcp6://[fd00::2]:47767"}) {
    EXPECT_THAT(why_not(kMpirun + Map{{"OMPI_MCA_orte_hnp_uri", unclear}}), HasSubstr("set MASTER_ADDR"))
        << unclear;
  }
}

TEST(Environment, OfSrun) {
  EXPECT_EQ(read(kSrun), "srun 4/6 1/2 node001:16421 (SLURM_STEP_NODELIST) 1.0");
  EXPECT_EQ(read(kSrun + Map{{"SLURM_STEP_TASKS_PER_NODE", "6"}, {"SLURM_NODEID", "0"}}),
            "srun 4/6 1/6 127.0.0.1:16421 (srun on one host) 1.0");
  EXPECT_EQ(read(kSrun + Map{{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "7"}}),
            "srun 4/6 1/2 10.0.0.1:7 (MASTER_ADDR) 1.0");
}

// SLURM_HOSTFILE may put task 0 anywhere.
TEST(Environment, TaskZeroMustBeOnTheFirstHost) {
  const Map first = kSrun + Map{{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}};
  EXPECT_THAT(why_not(first), AllOf(HasSubstr("SLURM_STEP_NODELIST"), HasSubstr("set MASTER_ADDR")));
  EXPECT_THAT(read(first + Map{{"MASTER_ADDR", "node002"}}), HasSubstr("node002"));
  EXPECT_THAT(read(first + Map{{"SLURM_NODEID", "0"}}), HasSubstr("node001"));
}

TEST(Environment, JobsThatFollowEachOtherHaveOtherPorts) {
  std::map<int, std::string> taken;
  for (int job = 100'000; job < 100'400; ++job) {
    for (int step = 0; step < 37; ++step) {
      const std::string name = std::to_string(job) + "." + std::to_string(step);
      const auto launch = read_launch(
          in(kSrun + Map{{"SLURM_JOB_ID", std::to_string(job)}, {"SLURM_STEP_ID", std::to_string(step)}}));
      EXPECT_GE(launch->port, 16384);
      EXPECT_LT(launch->port, 32768);
      EXPECT_TRUE(taken.emplace(launch->port, name).second) << name << " and " << taken[launch->port];
    }
  }
  EXPECT_NE(read_launch(in(kMpirun))->port,
            read_launch(in(kMpirun + Map{{"PMIX_NAMESPACE", "997720129"}}))->port);
}

TEST(Environment, OfPmi) {
  EXPECT_EQ(read(kMpiexec + Map{{"MASTER_PORT", "29500"}}), "PMI 1/3 1/3 127.0.0.1:29500 (PMI on one host) ");
  EXPECT_EQ(read(kMpiexec + Map{{"PMI_JOBID", "2.0"}}), "PMI 1/3 1/3 127.0.0.1:19459 (PMI on one host) 2.0");
  EXPECT_EQ(read({{"PMI_RANK", "2"},
                  {"PMI_SIZE", "4"},
                  {"PMI_LOCAL_RANK", "0"},
                  {"PMI_LOCAL_SIZE", "2"},
                  {"MASTER_ADDR", "nid1"},
                  {"MASTER_PORT", "29500"}}),
            "PMI 2/4 0/2 nid1:29500 (MASTER_ADDR) ");
  EXPECT_THAT(why_not(kMpiexec),
              AllOf(HasSubstr("PMI_JOBID is not set"), HasSubstr("-genv MASTER_PORT 29500")));
  EXPECT_THAT(why_not(kMpiexec + Map{{"PMI_SIZE", "4"}, {"MASTER_PORT", "29500"}}),
              AllOf(HasSubstr("on which host rank 0 runs"), HasSubstr("-genv MASTER_ADDR HOST")));
}

TEST(Environment, TheInnermostLauncherIsObeyed) {
  // torchrun in a job step, possibly started by mpirun.
  EXPECT_EQ(launcher_name(in(kSrun + kMpirun + kMpiexec + kTorchrun)), "torchrun");
  // mpirun starts its daemons by srun.
  EXPECT_EQ(launcher_name(in(kSrun + kMpirun)), "mpirun");
  // mpiexec starts its helpers by srun too: one task on each node.
  EXPECT_EQ(launcher_name(in(kSrun + Map{{"SLURM_STEP_NUM_TASKS", "1"}} + kMpiexec)), "PMI");
  // srun --mpi=pmi2 sets PMI's variables for its own tasks.
  EXPECT_EQ(launcher_name(in(kSrun + Map{{"PMI_RANK", "4"}, {"PMI_SIZE", "6"}})), "srun");
  // A job script that exports WORLD_SIZE and then calls srun.
  EXPECT_EQ(launcher_name(in(kSrun + Map{{"WORLD_SIZE", "6"}})), "srun");
  EXPECT_THAT(why_not({{"WORLD_SIZE", "6"}}), HasSubstr("RANK is not set: start the workers with torchrun"));
}

// A script of sbatch or a shell of salloc is no task, whatever the allocation's number of tasks.
TEST(Environment, AnAllocationIsNoJobStep) {
  const Map script = kSrun + Map{{"SLURM_STEP_ID", ""}, {"SLURM_PROCID", "0"}};
  const Map shell = kSrun + Map{{"SLURM_STEP_ID", ""}, {"SLURM_PROCID", ""}};
  const Map shell_as_step = kSrun + Map{{"SLURM_STEP_ID", "4294967290"}, {"SLURM_PROCID", "0"}};
  for (const Map& one : {script, shell, shell_as_step}) {
    EXPECT_EQ(launcher_name(in(one)), "");
    EXPECT_THAT(why_not(one), AllOf(HasSubstr("SLURM_NTASKS='6'"), HasSubstr("with srun")));
    EXPECT_EQ(read(one + Map{{"SLURM_NTASKS", "1"}}), "nothing");
  }
}

TEST(Environment, NamesTheVariableThatIsMissingOrWrong) {
  const Map cray{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PMI_LOCAL_RANK", "0"}, {"PMI_LOCAL_SIZE", "2"}};
  const std::vector<std::pair<Map, std::vector<std::string>>> launches{
      {kMpirun, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {kSrun,
       {"SLURM_JOB_ID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_TASKS_PER_NODE"}},
      {cray, {"PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"}}};
  for (const auto& [variables, names] : launches) {
    const Map good = variables + Map{{"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}};
    EXPECT_NE(read(good), "nothing");
    for (const std::string& name : names) {
      EXPECT_THAT(why_not(good + Map{{name, ""}}), HasSubstr(name + " is not set"));
      EXPECT_THAT(why_not(good + Map{{name, "none"}}), HasSubstr(name + "='none'"));
    }
  }
  EXPECT_THAT(why_not(kMpirun + Map{{"OMPI_COMM_WORLD_RANK", "3"}}),
              HasSubstr("OMPI_COMM_WORLD_RANK='3' is not an integer from 0 to 2"));
  EXPECT_THAT(why_not(kSrun + Map{{"SLURM_LOCALID", "2"}}), HasSubstr("SLURM_LOCALID='2'"));
  EXPECT_THAT(why_not(kSrun + Map{{"SLURM_STEP_NODELIST", ""}}), HasSubstr("SLURM_STEP_NODELIST is not set"));
  EXPECT_THAT(why_not(kSrun + Map{{"MASTER_PORT", "65536"}}), HasSubstr("MASTER_PORT='65536'"));
}

TEST(Environment, FirstHostOfAList) {
  const auto first = [](const std::string& list) { return first_host(list, "LIST"); };
  EXPECT_EQ(first("node[001-003,7],other-2"), "node001");
  EXPECT_EQ(first("other-2,node[001-003]"), "other-2");
  EXPECT_EQ(first("vm"), "vm");
  EXPECT_EQ(first("gpu[7,9-12].cluster"), "gpu7.cluster");
  EXPECT_EQ(first("rack[2-3]node[01-16],x"), "rack2node01");
  EXPECT_EQ(first("[10-12]"), "10");
  const std::map<std::string, std::string> refused{{"", "is no list of hosts"},
                                                   {",a", "is no list of hosts"},
                                                   {"a]1", "is no list of hosts"},
                                                   {"a[]", "no number follows a bracket"},
                                                   {"a[x]", "no number follows a bracket"},
                                                   {"a[1x]", "no number follows a bracket"},
                                                   {"a[", "a bracket is not closed"},
                                                   {"a[1", "a bracket is not closed"},
                                                   {"a[1-2", "a bracket is not closed"},
                                                   {"a[1,b", "a bracket is not closed"}};
  for (const auto& [list, why] : refused) {
    const auto ask = [&, &list = list] { first(list); };
    EXPECT_THAT(ask, ThrowsMessage<UsageError>("environment: LIST='" + list + "': " + why));
  }
  EXPECT_THAT(why_not(kSrun + Map{{"SLURM_STEP_NODELIST", "a[1"}}),
              HasSubstr("SLURM_STEP_NODELIST='a[1': a bracket is not closed"));
}

TEST(Environment, TasksOnANode) {
  const auto tasks = [](const std::string& list, int node) { return tasks_on_node(list, node, "LIST"); };
  EXPECT_EQ(tasks("2(x3),1", 0), 2);
  EXPECT_EQ(tasks("2(x3),1", 2), 2);
  EXPECT_EQ(tasks("2(x3),1", 3), 1);
  EXPECT_EQ(tasks("16", 0), 16);
  EXPECT_EQ(tasks("3,2,1", 1), 2);
  for (const auto& [list, node] : std::map<std::string, int>{{"", 0},
                                                             {"2(x3),1", 4},
                                                             {"0", 0},
                                                             {"2(x0)", 0},
                                                             {"2(x)", 0},
                                                             {"2(x2", 0},
                                                             {"-1", 0},
                                                             {"a", 0},
                                                             {",2", 0}}) {
    const auto ask = [&, &list = list, &node = node] { tasks(list, node); };
    EXPECT_THAT(ask, ThrowsMessage<UsageError>("environment: LIST='" + list +
                                               "' does not have the number of tasks on node " +
                                               std::to_string(node)));
  }
}

}  // namespace
}  // namespace starling
