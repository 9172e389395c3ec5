// A small data set for every task, for tests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "starling/train/recipe.h"
#include "starling/train/task.h"
#include "tests/data/data_files.h"
#include "tests/data/image_files.h"

namespace starling::testing_data {

struct SmallData {
  std::string task;
  std::int64_t train = 0, test = 0;  // examples
  std::int64_t losses = 1;           // in the loss of an example
  Overrides unvaried{};              // with them, an example looks the same in all batches
  // Writes the data into the folder. Returns the keys of a recipe that reads it.
  std::function<Overrides(const std::string& folder)> write;
};

inline void write_images(const std::string& path, int images, int seed) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(images) * 28 * 28),
      labels(static_cast<std::size_t>(images));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7 + i / 784);
  for (std::size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<std::uint8_t>((i + static_cast<std::size_t>(seed)) % 10);
  const auto n = static_cast<std::uint32_t>(images);
  write_gzip(path + "-images-idx3-ubyte.gz", idx_bytes({n, 28, 28}, pixels));
  write_gzip(path + "-labels-idx1-ubyte.gz", idx_bytes({n}, labels));
}

// Five files of 12 training images each, and one of 23 test images.
inline void write_cifar10(const std::string& folder) {
  for (int file = 1; file <= 6; ++file) {
    std::vector<Cifar10Record> records;
    for (int i = 0; i < (file < 6 ? 12 : 23); ++i)
      records.push_back({.label = (i + file) % 10, .seed = 100 * file + i});
    spill(file < 6 ? fmt::format("{}/data_batch_{}.bin", folder, file) : folder + "/test_batch.bin",
          cifar10_bytes(records));
  }
}

// Token i of the text is i.
inline void write_text(const std::string& path, std::int64_t size) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int64_t>(i);
  spill(path, token_bytes(tokens));
}

// The first token of each pair is its number, from 2 on.
inline void write_pairs(const std::string& path, std::int64_t size) {
  std::vector<Pair> pairs;
  for (std::int64_t i = 2; i < size + 2; ++i) pairs.push_back({{i, i + 1, i + 2}, {i, 99 - i, 2}});
  spill(path, pair_bytes(pairs));
}

inline void write_shard(const std::string& path, int images) {
  std::vector<LabelledJpeg> jpegs;
  for (int i = 0; i < images; ++i)
    jpegs.push_back(
        {static_cast<std::uint32_t>(i % 4), jpeg_bytes({.width = 40, .height = 30 + i, .seed = i})});
  spill(path, shard_bytes(jpegs, {"ant", "bee", "cat", "dog"}));
}

inline const std::vector<SmallData>& small_data() {
  static const std::vector<SmallData> kAll{
      {.task = "fashion-mnist",
       .train = 60,
       .test = 23,
       .unvaried = {{"data.flip", "false"}},
       .write = [](const std::string& folder) -> Overrides {
         write_images(folder + "/train", 60, 0);
         write_images(folder + "/t10k", 23, 3);
         return {{"data.dir", folder}, {"model.width", "8"}};
       }},
      {.task = "cifar-10",
       .train = 60,
       .test = 23,
       .write = [](const std::string& folder) -> Overrides {
         write_cifar10(folder);
         return {{"data.dir", folder}};
       }},
      {.task = "images",
       .train = 60,
       .test = 23,
       .unvaried = {{"data.flip", "false"}, {"data.area", "1"}},
       .write = [](const std::string& folder) -> Overrides {
         write_shard(folder + "/train-00000.shard", 60);
         write_shard(folder + "/val-00000.shard", 23);
         return {{"data.dir", folder},
                 {"data.size", "16"},
                 {"model.depth", "18"},
                 {"model.classes", "4"},
                 {"model.stem", "3x3"}};
       }},
      // 60 windows, and the token behind the last one, from any of 8 places on.
      {.task = "text",
       .train = 60,
       .test = 23,
       .write = [](const std::string& folder) -> Overrides {
         write_text(folder + "/train.bin", 7 + 60 * 8 + 1);
         write_text(folder + "/val.bin", 23 * 8 + 4);
         return {{"data.dir", folder}, {"model.layers", "1"},  {"model.heads", "2"},
                 {"model.width", "8"}, {"model.context", "8"}, {"model.vocabulary", "500"}};
       }},
      // All pairs are of 3 tokens and the end on each side, so 5 of them are 20 tokens.
      {.task = "translation",
       .train = 60,
       .test = 23,
       .losses = 4,
       .write = [](const std::string& folder) -> Overrides {
         write_pairs(folder + "/train.pairs", 60);
         write_pairs(folder + "/val.pairs", 23);
         return {{"data.dir", folder},       {"model.layers", "1"}, {"model.heads", "2"},
                 {"model.width", "8"},       {"model.inner", "12"}, {"train.batch", "20"},
                 {"model.vocabulary", "100"}};
       }},
  };
  return kAll;
}

class TaskTest : public testing::Test {
 protected:
  explicit TaskTest(const SmallData& data) : data_(data), keys_(data.write(folder_.path)) {}

  Recipe recipe(const Overrides& overrides = {}) const {
    Recipe recipe;
    recipe.data.name = data_.task;
    Config config = recipe_config(recipe);
    config.set("train.batch", "5");
    for (const Overrides& keys : {keys_, overrides}) {
      for (const auto& [key, value] : keys) config.set(key, value);
    }
    return recipe;
  }
  std::unique_ptr<Task> task(const Recipe& recipe, int rank = 0, int workers = 1) const {
    return task_of(recipe).load(recipe)({rank, workers});
  }

  const Folder folder_;
  const SmallData data_;

 private:
  const Overrides keys_;
};

inline const SmallData& small_data_of(const std::string& task) {
  return *std::ranges::find(small_data(), task, &SmallData::task);
}

}  // namespace starling::testing_data
