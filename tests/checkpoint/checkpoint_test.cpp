#include "starling/checkpoint/checkpoint.h"

#include <gmock/gmock.h>

#include "starling/checkpoint/consensus.h"
#include "tests/checkpoint/folder.h"
#include "tests/log_lines.h"

namespace starling {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Checkpoint, IsFoundByItsFolderAndAsTheLatest) {
  const Folder folder;
  const std::string root = folder / "checkpoints";
  EXPECT_FALSE(has_checkpoints(root));
  const Manifest written = write_checkpoint(root, 15);
  EXPECT_TRUE(has_checkpoints(root));
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"latest", "step-15"}));
  for (const std::string& path : {root, root + "/step-15"}) {
    const Checkpoint checkpoint(path);
    EXPECT_EQ(checkpoint.folder(), root + "/step-15");
    EXPECT_EQ(to_json(checkpoint.manifest()), to_json(written));
    checkpoint.verify_all();
    EXPECT_EQ(checkpoint.verified(2), root + "/step-15/worker-2.safetensors");
  }
}

TEST(Checkpoint, TheNewestStayAndLaterOnesAreNotTouched) {
  const Folder folder;
  for (const int step : {5, 10, 15, 20}) write_checkpoint(folder.path, step, 3);
  EXPECT_EQ(names_in(folder.path), (std::vector<std::string>{"latest", "step-10", "step-15", "step-20"}));
  write_checkpoint(folder.path, 12, 2);  // a run that was resumed from 10
  EXPECT_EQ(names_in(folder.path),
            (std::vector<std::string>{"latest", "step-10", "step-12", "step-15", "step-20"}));
  EXPECT_EQ(Checkpoint(folder.path).manifest().step, 12);
}

TEST(Checkpoint, OneOfTheSameStepIsReplaced) {
  const Folder folder;
  write_checkpoint(folder.path, 5);
  Manifest again{.step = 5, .workers = 1};
  again.files.push_back({0, write_small(draft_checkpoint(folder.path, 5) + "/worker-0.safetensors", 99)});
  commit_checkpoint(folder.path, again, 2);
  EXPECT_EQ(names_in(folder.path), (std::vector<std::string>{"latest", "step-5"}));
  EXPECT_EQ(names_in(folder / "step-5"), (std::vector<std::string>{"manifest.json", "worker-0.safetensors"}));
  Checkpoint(folder.path).verify_all();
}

// One of 3 workers has written: such a checkpoint cannot be resumed.
Manifest write_in_part(const std::string& root, int step) {
  Manifest part{.step = step, .workers = 3};
  part.files.push_back({1, write_small(draft_checkpoint(root, step) + "/worker-1.safetensors", 99)});
  commit_checkpoint(root, part, 2);
  return part;
}

TEST(Checkpoint, OneOfFewerWorkersReplacesNone) {
  const Folder folder;
  write_checkpoint(folder.path, 5);
  EXPECT_THAT(refusal([&] { write_in_part(folder.path, 5); }),
              HasSubstr("step-5: it stays, with the files of 3 workers, since the new one has only 1"));
  EXPECT_EQ(Checkpoint(folder.path).manifest().files.size(), 3U);
  Checkpoint(folder.path).verify_all();
}

// Workers that were away have written an old step, while the others went on.
TEST(Checkpoint, OneOfAFewWorkersDoesNotMoveTheLatestBack) {
  const Folder folder;
  for (const int step : {5, 15}) write_checkpoint(folder.path, step);
  EXPECT_THAT(
      refusal([&] { write_in_part(folder.path, 10); }),
      HasSubstr("step-10: not kept: it has the files of only 1 of 3 workers, and step-15 is the latest"));
  EXPECT_FALSE(fs::exists(folder / "step-10"));
  EXPECT_EQ(Checkpoint(folder.path).manifest().step, 15);
  write_checkpoint(folder.path, 10);  // all workers have gone back
  EXPECT_EQ(Checkpoint(folder.path).manifest().step, 10);
}

TEST(Checkpoint, TheLastThatCanBeResumedStays) {
  const Folder folder;
  for (const int step : {5, 10}) write_checkpoint(folder.path, step);
  for (const int step : {15, 20, 25, 30}) write_in_part(folder.path, step);
  EXPECT_EQ(names_in(folder.path), (std::vector<std::string>{"latest", "step-10", "step-25", "step-30"}));
  write_checkpoint(folder.path, 35);
  EXPECT_EQ(names_in(folder.path), (std::vector<std::string>{"latest", "step-30", "step-35"}));
}

TEST(Checkpoint, ADamagedOneIsNotTheLastThatCanBeResumed) {
  const Folder folder;
  for (const int step : {5, 10}) write_checkpoint(folder.path, step);
  fs::resize_file(folder / "step-10/worker-1.safetensors", 10);
  for (const int step : {15, 20}) write_in_part(folder.path, step);
  EXPECT_EQ(names_in(folder.path), (std::vector<std::string>{"latest", "step-15", "step-20", "step-5"}));
  EXPECT_THAT(refusal([&] { Checkpoint(folder.path).verified(0); }),
              HasSubstr(": resume " + folder / "step-5"));
  const fs::path before = fs::current_path();
  fs::current_path(folder.path);
  const std::string said = refusal([&] { Checkpoint("step-20").verified(0); });
  fs::current_path(before);
  EXPECT_THAT(said, HasSubstr("step-20: has no file of worker 0, "));
  EXPECT_THAT(said, HasSubstr(": resume ./step-5"));
}

TEST(Checkpoint, WhatAKilledAttemptLeftIsNoCheckpointAndGoesWithTheNext) {
  const Folder folder;
  write_checkpoint(folder.path, 5);
  write_small(draft_checkpoint(folder.path, 7) + "/worker-0.safetensors", 1);
  write_small(draft_checkpoint(folder.path, 10) + "/worker-3.safetensors",
              1);  // from a worker that is absent now
  EXPECT_EQ(Checkpoint(folder.path).manifest().step, 5);
  write_checkpoint(folder.path, 10);
  EXPECT_EQ(names_in(folder.path), (std::vector<std::string>{"latest", "step-10", "step-5"}));
  EXPECT_EQ(names_in(folder / "step-10").size(), 4U);
  draft_checkpoint(folder.path, 15);
  drop_checkpoint(folder.path, 15);
  EXPECT_EQ(names_in(folder.path).size(), 3U);
}

TEST(Checkpoint, AFileThatIsNotWhatItsManifestSaysKeepsTheLatest) {
  const Folder folder;
  write_checkpoint(folder.path, 5);
  Manifest manifest{.step = 10, .workers = 1, .files = {{0, {1, 1}}}};
  write_small(draft_checkpoint(folder.path, 10) + "/worker-0.safetensors", 1);
  EXPECT_THAT(refusal([&] { commit_checkpoint(folder.path, manifest, 2); }),
              HasSubstr("the manifest says 1"));
  EXPECT_FALSE(fs::exists(folder / "step-10"));
  EXPECT_EQ(Checkpoint(folder.path).manifest().step, 5);
}

TEST(Checkpoint, FoldersThatHoldNoneAreRefused) {
  const Folder folder;
  EXPECT_EQ(refusal([&] { Checkpoint checkpoint(folder.path); }),
            folder.path + ": there is no checkpoint: neither manifest.json nor latest is there");
  for (const std::string text :
       {"", "step-5", "../step-5\n", "step-05\n", "step--5\n", "step-5.tmp\n", "/step-5\n"}) {
    spill(folder / "latest", text);
    EXPECT_EQ(refusal([&] { Checkpoint checkpoint(folder.path); }),
              (folder / "latest") +
                  ": offset 0: this is not the name of a checkpoint, such as step-15, with a newline");
  }
  spill(folder / "latest", "step-5\n");
  EXPECT_THAT(refusal([&] { Checkpoint checkpoint(folder.path); }),
              HasSubstr("step-5/manifest.json: cannot be opened: No such file or directory"));
  const std::string far(300, 'x');
  EXPECT_THAT(refusal([&] { Checkpoint checkpoint(far); }),
              HasSubstr("xx/latest: cannot be read: File name too long"));
  EXPECT_THAT(refusal([&] { has_checkpoints(far); }), HasSubstr("xx: cannot be listed: File name too long"));
  EXPECT_FALSE(has_checkpoints(folder / "none"));
}

TEST(Checkpoint, PlacesThatCannotHoldOneAreNamed) {
  const Folder folder;
  const std::string file = folder / "file";
  spill(file, "");
  EXPECT_EQ(refusal([&] { has_checkpoints(file); }), file + ": cannot be listed: Not a directory");
  EXPECT_EQ(refusal([&] { draft_checkpoint(file, 5); }),
            file + "/step-5.tmp: cannot be made: Not a directory");
  const std::string root = folder / "root";
  fs::create_directories(root + "/latest");
  EXPECT_EQ(refusal([&] { write_checkpoint(root, 5); }),
            root + "/latest: cannot be put in place: Is a directory");
  EXPECT_EQ(refusal([&] { Checkpoint checkpoint(root); }), root + "/latest: is not a regular file");
  fs::remove(root + "/latest");
  write_checkpoint(root, 5);
  EXPECT_EQ(refusal([&] { write_consensus(AverageModel(Checkpoint(root), LogLines().log()), root); }),
            root + ": cannot be put in place: Is a directory");
  EXPECT_FALSE(fs::exists(root + ".tmp"));
  spill(root + "/latest", std::string(65, 'a'));
  EXPECT_EQ(refusal([&] { Checkpoint checkpoint(root); }),
            root + "/latest: offset 64: the file has 65 bytes; at most 64 are read");
}

TEST(Checkpoint, MissingSwappedForeignAndShortFilesAreRefused) {
  const Folder folder;
  write_checkpoint(folder.path, 5);
  const std::string step = folder / "step-5/", first = step + "worker-0.safetensors";
  const auto said = [&](int worker) { return refusal([&] { Checkpoint(step).verified(worker); }); };
  fs::rename(first, folder / "kept");
  EXPECT_EQ(said(0), first + ": cannot be opened: No such file or directory");
  fs::rename(step + "worker-1.safetensors", first);
  fs::rename(folder / "kept", step + "worker-1.safetensors");
  EXPECT_THAT(said(0), HasSubstr(first + ": offset 0: damaged, or another worker's or step's file"));
  EXPECT_THAT(said(1), HasSubstr("worker-1.safetensors: offset 0: damaged, or another worker's"));
  EXPECT_EQ(said(2), "accepted");
  EXPECT_THAT(said(3), HasSubstr("has no file of worker 3"));
  spill(first, raw("{}", ""));
  EXPECT_THAT(said(0), HasSubstr(first + ": offset 10: the file has 10 bytes, the manifest says"));
  spill(first, "");
  EXPECT_EQ(said(0), first + ": offset 0: the file ends within its first 8 bytes, the header's length");
  spill(first, "GIF89a, and not a safetensors file at all");
  EXPECT_THAT(said(0), HasSubstr(first + ": offset 0: the header's length is"));
  fs::remove(first);
  fs::create_symlink(folder / "step-5/worker-1.safetensors", first);
  EXPECT_EQ(said(0), first + ": is a symbolic link, not a file");
}

// --- the average model ---

TEST(Consensus, AveragesRealNumbersAndTakesTheLargestOfWholeOnes) {
  const Folder folder;
  write_checkpoint(folder.path, 5);
  write_consensus(AverageModel(Checkpoint(folder.path), LogLines().log()), folder / "mean");
  const SafetensorsReader file(folder / "mean");
  ASSERT_EQ(file.tensors().size(), 3U);  // the model alone, under the module's names
  float weight[4];
  file.read(*file.find("weight"), std::as_writable_bytes(std::span(weight)));
  EXPECT_EQ(weight[0], 1.5F + 6);  // the mean of 5, 6 and 7
  EXPECT_EQ(weight[3], 1e-30F);
  std::uint8_t count[3];
  file.read(*file.find("count"), std::as_writable_bytes(std::span(count)));
  EXPECT_EQ(count[1], 7);
  EXPECT_EQ(file.metadata().at("starling.step"), "5");
}

TEST(Consensus, HoldsTheRecipeAsToml) {
  const Folder folder;
  write_checkpoint(folder.path, 5);
  Manifest manifest = Checkpoint(folder.path).manifest();
  manifest.step = 6;
  manifest.recipe = {{"run.seed", "3"}, {"data.dir", "\"a b\""}, {"run.out", "\"out\""}};
  const std::string draft = draft_checkpoint(folder.path, 6);
  for (const WorkerFile& file : manifest.files)
    fs::copy_file(folder / "step-5/" + file.name(), draft + "/" + file.name());
  commit_checkpoint(folder.path, manifest, 2);
  const AverageModel model(Checkpoint(folder.path), LogLines().log());
  EXPECT_EQ(model.metadata().at(kRecipe), "[data]\ndir = \"a b\"\n[run]\nseed = 3\nout = \"out\"\n");
}

using Values = std::vector<double>;

// A checkpoint of workers that have one tensor of these values; then it is averaged.
Values average_of(const std::vector<Values>& workers, LogLines& said) {
  const Folder folder;
  Manifest manifest{.step = 9, .workers = static_cast<int>(workers.size())};
  const std::string draft = draft_checkpoint(folder.path, 9);
  for (int w = 0; w < manifest.workers; ++w) {
    const Values& values = workers[static_cast<std::size_t>(w)];
    const auto n = static_cast<std::int64_t>(values.size());
    SafetensorsWriter writer(draft + "/" + worker_file(w),
                             {{.name = "model.x", .dtype = "F64", .shape = {n - 1}},
                              {.name = "model.y", .dtype = "F64", .shape = {1}}},
                             {});
    writer.write(std::as_bytes(std::span(values)).first(8 * (values.size() - 1)));
    writer.write(std::as_bytes(std::span(values)).last(8));
    manifest.files.push_back({w, writer.finish()});
  }
  commit_checkpoint(folder.path, manifest, 2);
  const AverageModel model(Checkpoint(folder.path), said.log());
  write_consensus(model, folder / "mean");
  const SafetensorsReader file(folder / "mean");
  EXPECT_EQ(file.metadata().at("starling.workers"), std::to_string(model.workers()));
  Values mean(workers.front().size());
  const auto bytes = std::as_writable_bytes(std::span(mean));
  file.read(*file.find("x"), bytes.first(bytes.size() - 8));
  file.read(*file.find("y"), bytes.last(8));
  return mean;
}

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Consensus, EqualNumbersStayWhatTheyAre) {
  LogLines said;
  const Values values{0.1, -kInf, 0.3};  // -inf as in a mask
  EXPECT_EQ(average_of({values, values, values}, said), values);
  EXPECT_EQ(said.text(), "");
}

TEST(Consensus, AWorkerThatIsNotFiniteIsLeftOut) {
  for (const double bad : {std::nan(""), kInf}) {
    LogLines said;
    EXPECT_EQ(average_of({{1, 2, 3}, {100, 100, bad}, {3, 4, 5}}, said), (Values{2, 3, 4}));
    EXPECT_THAT(said.all(), testing::ElementsAre(HasSubstr(
                                "step-9/worker-1.safetensors: left out of the average model, because its "
                                "tensor \"y\" is not finite")));
    EXPECT_THAT(refusal([&] { average_of({{1, 2, bad}, {1, bad, 2}}, said); }),
                HasSubstr("there is no average model: of each worker some tensor is not finite"));
  }
}

TEST(Consensus, RefusesDamagedFilesAndWorkersThatDoNotFit) {
  const Folder folder;
  const auto put = [&](const std::string& dtype, std::int64_t length, const std::string& name) {
    Manifest manifest{.step = 9, .workers = 2};
    const std::string draft = draft_checkpoint(folder.path, 9);
    for (int w = 0; w < 2; ++w) {
      const std::int64_t n = w == 0 ? 2 : length;
      SafetensorsWriter writer(draft + "/" + worker_file(w), {{.name = name, .dtype = dtype, .shape = {n}}},
                               {});
      writer.write(std::vector<std::byte>(static_cast<std::size_t>(n) * 2));
      manifest.files.push_back({w, writer.finish()});
    }
    commit_checkpoint(folder.path, manifest, 2);
    return refusal(
        [&] { write_consensus(AverageModel(Checkpoint(folder.path), LogLines().log()), folder / "mean"); });
  };
  EXPECT_EQ(put("I16", 2, "model.x"), "accepted");
  EXPECT_THAT(put("I16", 3, "model.x"),
              HasSubstr("worker-1.safetensors: there is no tensor \"model.x\" with"));
  EXPECT_EQ(put("F16", 2, "model.x"), "accepted");
  EXPECT_THAT(put("U16", 2, "model.x"),
              HasSubstr("tensor \"x\" is U16; allowed are F64, F32, F16 and BF16, which are averaged"));
  EXPECT_THAT(put("I16", 2, "m.x"), HasSubstr("holds no model"));
  write_checkpoint(folder.path, 10);
  std::string text = slurp(folder / "step-10/worker-1.safetensors");
  text.back() ^= 1;
  spill(folder / "step-10/worker-1.safetensors", text);
  EXPECT_THAT(refusal([&] {
                write_consensus(AverageModel(Checkpoint(folder.path), LogLines().log()), folder / "mean");
              }),
              HasSubstr("damaged"));
}

}  // namespace
}  // namespace starling
