#include "starling/train/study.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/crc32c.h"
#include "starling/core/text.h"
#include "starling/core/tree_reader.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr int kMostStudyWorkers = 1024;
constexpr const char* kSeed = "run.seed";
constexpr const char* kWorkers = "workers";

struct Setting {
  std::string path;
  Node node;
  int line = 0;
};

// One value of an axis: the keys that it sets.
struct Choice {
  std::string text;
  std::vector<std::pair<std::string, std::string>> keys;
};
struct Choosing {
  std::string name;
  int line = 0;
  std::vector<Choice> choices;
};

class StudyReader : TreeReader {
 public:
  StudyReader(const std::string& file, StudyRecipe& recipe) : TreeReader(file), recipe_(recipe) {}

  Study read(const std::string& text) {
    const Node root = parse_toml(text, file_);
    know_keys(root, {"title", "recipe", "run", "out", kWorkers, "set", "simulate", "grid", "baseline",
                     Study::kAblation});
    study_.file = file_;
    study_.title = text_or(root, "title", fs::path(file_).stem().string());
    study_.out = text_or(root, "out", "out/" + fs::path(file_).stem().string());
    study_.recipe = beside(text_of(needed(root, "recipe"), "recipe"));
    const std::string how = text_or(root, "run", "simulate");
    if (how != "simulate" && how != "train")
      refuse(needed(root, "run").line, fmt::format("run = {}{}: allowed is simulate or train", short_of(how),
                                                   did_you_mean(how, {"simulate", "train"})));
    study_.simulated = how == "simulate";

    recipe_.read(study_.recipe);
    if (const Node* set = table(root, "set")) {
      for (const Setting& each : settings_of(*set)) common_.push_back(key_of(each));
    }
    recipe_.set(common_, file_ + ": [set]");
    study_.task = recipe_.task();
    read_cluster(root);
    read_grid(root);
    read_ablations(root);
    name_axes();
    make_arms(root);
    make_runs();
    return std::move(study_);
  }

 private:
  const Node* table(const Node& root, const char* name) const {
    const Node* found = find(root, name);
    if (found != nullptr && found->as<Node::Table>() == nullptr)
      refuse(found->line, fmt::format("{} is {}, but must be a section: [{}]", name, found->kind(), name));
    return found;
  }
  std::string text_of(const Node& node, std::string_view name) const {
    const auto* text = node.as<std::string>();
    if (text == nullptr || text->empty())
      refuse(node.line, fmt::format("{} is {}, but must be a text", name, node.kind()));
    return *text;
  }
  std::string text_or(const Node& root, const char* name, const std::string& otherwise) const {
    const Node* found = find(root, name);
    return found == nullptr ? otherwise : text_of(*found, name);
  }
  // A path in the file is relative to the file.
  std::string beside(const std::string& path) const {
    return (fs::path(file_).parent_path() / path).lexically_normal().string();
  }

  // The values of a section by rising line, those of tables within as "table.key".
  static std::vector<Setting> settings_of(const Node& section) {
    std::vector<Setting> all;
    add_settings(section, "", all);
    std::ranges::stable_sort(all, {}, &Setting::line);
    return all;
  }
  static void add_settings(const Node& node, const std::string& prefix, std::vector<Setting>& all) {
    for (const Member& member : *node.as<Node::Table>()) {
      if (member.node.as<Node::Table>() != nullptr) {
        add_settings(member.node, prefix + member.name + ".", all);
      } else {
        all.push_back({prefix + member.name, member.node, member.line});
      }
    }
  }

  // A value as an override of the command line has it.
  std::string written(const Node& node, const std::string& path, int line) const {
    if (const auto* flag = node.as<bool>()) return *flag ? "true" : "false";
    if (const auto* whole = node.as<std::int64_t>()) return fmt::format("{}", *whole);
    if (const auto* real = node.as<double>()) return fmt::format("{}", *real);
    if (const auto* text = node.as<std::string>()) return *text;
    std::vector<double> numbers;
    if (const auto* array = node.as<Node::Array>()) {
      for (const Node& each : *array) {
        if (const auto number = number_in(each)) numbers.push_back(*number);
      }
      if (!numbers.empty() && numbers.size() == array->size())
        return fmt::format("[{}]", fmt::join(numbers, ", "));
    }
    refuse(line, fmt::format("{} is {}, which no key of a recipe is", path, node.kind()));
  }

  // The key is there and allows the value.
  std::pair<std::string, std::string> key_of(const Setting& setting) {
    for (const char* path : {"data.name", "run.out", "checkpoint.resume", kSeed}) {
      if (setting.path == path)
        refuse(setting.line, fmt::format("{} cannot be set here: {}", path,
                                         setting.path == kSeed ? "seeds are a list in [grid]"
                                                               : "it is the same for the whole study"));
    }
    const std::string text = written(setting.node, setting.path, setting.line);
    check_key(setting.path, text, setting.line);
    return {setting.path, text};
  }
  void check_key(const std::string& path, const std::string& text, int line) {
    if (path.find('.') == std::string::npos)
      refuse(line, fmt::format("{}: a key of the recipe has the form section.key", short_of(path)));
    recipe_.check(path, text, place(file_, line));
  }

  void read_cluster(const Node& root) {
    const Node* section = table(root, "simulate");
    if (section == nullptr) return;
    if (!study_.simulated) refuse(section->line, "[simulate] is for run = \"simulate\" alone");
    static const std::vector<std::string> kNumbers{"gradient", "cv",      "straggler", "gigabits",
                                                   "latency",  "link-cv", "slow-link", "look-every"};
    static const std::vector<std::string> kFiles{"profile", "compute"};
    std::vector<std::string> known = kNumbers;
    known.insert(known.end(), kFiles.begin(), kFiles.end());
    know_keys(*section, known);
    for (const Member& member : *section->as<Node::Table>()) {
      const auto number = number_in(member.node);
      if (std::ranges::count(kFiles, member.name) > 0) {
        study_.cluster.emplace_back(member.name, beside(text_of(member.node, member.name)));
      } else if (!number) {
        refuse(member.line, fmt::format("{} is {}, but must be a number", member.name, member.node.kind()));
      } else {
        study_.cluster.emplace_back(member.name, fmt::format("{}", *number));
      }
    }
  }

  std::int64_t whole(const Node& node, const std::string& path, std::int64_t least, std::int64_t most,
                     int line) const {
    const auto* value = node.as<std::int64_t>();
    if (value == nullptr || *value < least || *value > most)
      refuse(line, fmt::format("{}: must be a whole number from {} to {}", path, least, most));
    return *value;
  }

  void read_grid(const Node& root) {
    const Node* grid = table(root, "grid");
    if (grid == nullptr) refuse(1, "the section [grid] is missing");
    const Node* workers = find(root, kWorkers);
    if (workers != nullptr)
      workers_ = static_cast<int>(whole(*workers, kWorkers, 1, kMostStudyWorkers, workers->line));
    study_.seeds = {recipe_.seed()};
    for (const Setting& setting : settings_of(*grid)) {
      const auto* values = setting.node.as<Node::Array>();
      if (values == nullptr || values->empty())
        refuse(setting.line,
               fmt::format("{} is {}, but must be a list of values", setting.path, setting.node.kind()));
      if (setting.path == kSeed) {
        study_.seeds.clear();
        for (const Node& value : *values)
          study_.seeds.push_back(whole(value, kSeed, 0, std::int64_t{1} << 53, setting.line));
        const std::set<std::int64_t> different(study_.seeds.begin(), study_.seeds.end());
        if (different.size() < study_.seeds.size()) refuse(setting.line, "run.seed has a value twice");
      } else {
        read_axis(setting, *values);
      }
    }
    if (workers_ == 0)
      refuse(grid->line, "workers is missing: a number at the top of the file, or a list in [grid]");
  }

  void read_axis(const Setting& setting, const Node::Array& values) {
    Choosing axis{.name = setting.path, .line = setting.line, .choices = {}};
    for (const Node& value : values) {
      Choice choice;
      if (value.as<Node::Table>() != nullptr) {
        choice = named_choice(value, setting);
      } else if (setting.path == kWorkers) {
        workers_ = static_cast<int>(whole(value, kWorkers, 1, kMostStudyWorkers, setting.line));
        choice = {fmt::format("{}", workers_), {{kWorkers, fmt::format("{}", workers_)}}};
      } else {
        choice.keys = {key_of({setting.path, value, setting.line})};
        choice.text = choice.keys.front().second;
      }
      if (std::ranges::count(axis.choices, choice.text, &Choice::text) > 0)
        refuse(setting.line, fmt::format("{} has the value {} twice", setting.path, short_of(choice.text)));
      axis.choices.push_back(std::move(choice));
    }
    grid_.push_back(std::move(axis));
  }

  // { name = "fast", optimizer.lr = 1.0 }
  Choice named_choice(const Node& value, const Setting& axis) {
    Choice choice;
    choice.text = text_of(needed(value, "name"), "name");
    for (const Setting& each : settings_of(value)) {
      if (each.path != "name")
        choice.keys.push_back(key_of({each.path, each.node, each.line > 0 ? each.line : axis.line}));
    }
    return choice;
  }

  void read_ablations(const Node& root) {
    const Node* section = table(root, Study::kAblation);
    if (section == nullptr) return;
    Choosing axis{.name = Study::kAblation, .line = section->line, .choices = {{Study::kNothing, {}}}};
    std::vector<const Member*> members;
    for (const Member& member : *section->as<Node::Table>()) members.push_back(&member);
    std::ranges::stable_sort(members, {}, &Member::line);
    for (const Member* member : members) {
      if (member->node.as<Node::Table>() == nullptr || member->name == Study::kNothing)
        refuse(member->line, fmt::format("{}: must be a section with another name than none: [ablation.NAME]",
                                         short_of(member->name)));
      Choice choice{.text = member->name, .keys = {}};
      for (const Setting& each : settings_of(member->node)) choice.keys.push_back(key_of(each));
      if (choice.keys.empty())
        refuse(member->line, fmt::format("{}: changes no key", short_of(member->name)));
      axis.choices.push_back(std::move(choice));
    }
    grid_.push_back(std::move(axis));
  }

  void name_axes() {
    const auto last_part = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
    std::map<std::string, std::string> set_by;  // the list that sets a key
    for (const Choosing& axis : grid_) {
      if (std::ranges::count(grid_, axis.name, &Choosing::name) > 1)
        refuse(axis.line, fmt::format("{} is there twice", axis.name));
      for (const Choice& choice : axis.choices) {
        for (const auto& [key, value] : choice.keys) {
          const std::string& list = set_by.emplace(key, axis.name).first->second;
          if (list != axis.name && axis.name != Study::kAblation)
            refuse(axis.line, fmt::format("{} and {} both set {}", list, axis.name, key));
        }
      }
      const auto same = std::ranges::count_if(
          grid_, [&](const Choosing& other) { return last_part(other.name) == last_part(axis.name); });
      Study::Axis& shown = study_.axes.emplace_back();
      shown.name = axis.name;
      shown.shown = same > 1 ? axis.name : last_part(axis.name);
      for (const Choice& choice : axis.choices) shown.values.push_back(choice.text);
    }
  }

  // The values of the baseline, by axis.
  std::map<std::size_t, std::string> read_baseline(const Node& root) const {
    std::map<std::size_t, std::string> baseline;
    const Node* section = table(root, "baseline");
    if (section == nullptr) return baseline;
    for (const Setting& setting : settings_of(*section)) {
      std::vector<std::string> axes;
      for (const Study::Axis& axis : study_.axes) {
        if (axis.name != Study::kAblation) axes.push_back(axis.name);
      }
      const auto axis = std::ranges::find(axes, setting.path);
      if (axis == axes.end())
        refuse(setting.line, fmt::format("{} is no list of [grid]{}; there are: {}", short_of(setting.path),
                                         did_you_mean(setting.path, axes), fmt::join(axes, ", ")));
      const auto index = static_cast<std::size_t>(axis - axes.begin());
      const std::string text = written(setting.node, setting.path, setting.line);
      const auto& values = study_.axes[index].values;
      if (std::ranges::count(values, text) == 0)
        refuse(setting.line,
               fmt::format("{} = {}: [grid] has no such value{}; there are: {}", setting.path, short_of(text),
                           did_you_mean(text, values), fmt::join(values, ", ")));
      baseline[index] = text;
    }
    return baseline;
  }

  void make_arms(const Node& root) {
    std::size_t runs = study_.seeds.size();
    const auto check_runs = [&] {
      if (runs > Study::kMostRuns)
        refuse(find(root, "grid")->line, fmt::format("more than {} runs", Study::kMostRuns));
    };
    check_runs();
    for (const Study::Axis& axis : study_.axes) {
      runs *= axis.values.size();
      check_runs();
    }
    const std::size_t arms = runs / study_.seeds.size();
    for (std::size_t number = 0; number < arms; ++number) {
      Study::Arm& arm = study_.arms.emplace_back();
      std::size_t rest = number, below = arms;
      for (const Study::Axis& axis : study_.axes) {
        below /= axis.values.size();
        arm.values.push_back(axis.values[rest / below]);
        rest %= below;
      }
    }
    compare(read_baseline(root));
  }

  void compare(const std::map<std::size_t, std::string>& baseline) {
    const bool ablated = !study_.axes.empty() && study_.axes.back().name == Study::kAblation;
    std::vector<std::vector<std::string>> panels;
    for (std::size_t number = 0; number < study_.arms.size(); ++number) {
      Study::Arm& arm = study_.arms[number];
      std::vector<std::string> other = arm.values, panel = arm.values;
      for (const auto& [axis, value] : baseline) panel[axis] = value;
      if (ablated) panel.back() = Study::kNothing;
      if (ablated && arm.values.back() != Study::kNothing) {
        other.back() = Study::kNothing;
      } else {
        for (const auto& [axis, value] : baseline) other[axis] = value;
      }
      const auto found = static_cast<std::size_t>(std::ranges::find(study_.arms, other, &Study::Arm::values) -
                                                  study_.arms.begin());
      if (found != number) arm.baseline = found;
      if (baseline.empty() && !ablated) continue;  // one panel
      const auto known = std::ranges::find(panels, panel);
      arm.panel = static_cast<std::size_t>(known - panels.begin());
      if (known == panels.end()) panels.push_back(panel);
    }
  }

  void make_runs() {
    std::set<std::string> names;
    for (std::size_t number = 0; number < study_.arms.size(); ++number) {
      const Study::Arm& arm = study_.arms[number];
      std::map<std::string, std::string> keys(common_.begin(), common_.end());
      int workers = workers_;
      std::string name;
      for (std::size_t axis = 0; axis < grid_.size(); ++axis) {
        const Choice& choice = *std::ranges::find(grid_[axis].choices, arm.values[axis], &Choice::text);
        name += fmt::format("{}={},", study_.axes[axis].shown, choice.text);
        for (const auto& [path, value] : choice.keys) keys[path] = value;
      }
      if (const auto found = keys.extract(kWorkers)) workers = std::stoi(found.mapped());
      for (const std::int64_t seed : study_.seeds) {
        Study::Run run{
            .arm = number, .seed = seed, .workers = workers, .name = {}, .keys = {}, .settings = {}};
        run.name = folder_name(fmt::format("{}seed={}", name, seed));
        if (!names.insert(run.name).second) refuse(1, fmt::format("two runs have the name {}", run.name));
        keys[kSeed] = fmt::format("{}", seed);
        run.keys.assign(keys.begin(), keys.end());
        run.settings = settings_text(run);
        study_.runs.push_back(std::move(run));
      }
    }
  }

  // A name without what a shell or a file system takes amiss.
  static std::string folder_name(const std::string& text) {
    constexpr std::size_t kLongest = 160;
    constexpr std::string_view kAllowed =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+=:,@%";
    std::string name = text.substr(0, kLongest);
    std::ranges::replace_if(name, [&](char c) { return kAllowed.find(c) == std::string_view::npos; }, '-');
    return name == text ? name : fmt::format("{}-{:08x}", name, crc32c(std::as_bytes(std::span(text))));
  }

  // Threads and folders change no result.
  std::string settings_text(const Study::Run& run) const {
    std::string text =
        fmt::format("run = {}\nworkers = {}\n", study_.simulated ? "simulate" : "train", run.workers);
    for (const auto& [name, value] : study_.cluster) text += fmt::format("simulate.{} = {}\n", name, value);
    for (const auto& [path, value] : recipe_.with(run.keys, fmt::format("{}: run {}", file_, run.name))) {
      if (path != "run.out" && path != "run.threads" && path != "data.threads")
        text += fmt::format("{} = {}\n", path, value);
    }
    return text;
  }

  StudyRecipe& recipe_;
  Study study_;
  Study::Keys common_;
  int workers_ = 0;
  std::vector<Choosing> grid_;
};

}  // namespace

std::string Study::name_of(const Arm& arm) const {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].values.size() > 1) parts.push_back(fmt::format("{} {}", axes[i].shown, arm.values[i]));
  }
  return parts.empty() ? title : fmt::format("{}", fmt::join(parts, ", "));
}

Study parse_study(const std::string& text, const std::string& file, StudyRecipe& recipe) {
  return StudyReader(file, recipe).read(text);
}

}  // namespace starling
