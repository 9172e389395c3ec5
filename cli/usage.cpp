#include "cli/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <regex>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "starling/core/text.h"

namespace starling::cli {

namespace {

constexpr std::size_t kNames = 30;  // columns of options and commands
constexpr const char* kBold = "1";
constexpr const char* kName = "36";
constexpr const char* kWrong = "1;31";

bool colourful(int file) {
  const char* const terminal = std::getenv("TERM");
  return isatty(file) != 0 && !refuses_colour() &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

std::string coloured(int file, const char* colour, const std::string& text) {
  return colourful(file) ? fmt::format("\x1b[{}m{}\x1b[0m", colour, text) : text;
}

std::size_t columns() {
  const char* const given = std::getenv("COLUMNS");
  if (const auto n = parse_number<int>(given == nullptr ? "" : given); n && *n > 0)
    return static_cast<std::size_t>(std::max(*n, 40));
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::max<std::size_t>(size.ws_col, 40) : 80;
}

// Text in lines that end before the last column. All but the first begin with so many spaces; the
// first stands behind `used` characters.
std::string wrapped(const std::string& text, std::size_t used, std::size_t indent) {
  const std::size_t width = columns() - 1;
  std::string out;
  std::size_t at = used;
  for (const std::string& word : CLI::detail::split(text, ' ')) {
    if (word.empty()) continue;
    if (at > indent && at + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (at > indent) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  return out;
}

// A name and what it means, beside each other.
std::string entry(const std::string& name, const std::string& meaning) {
  const std::size_t names = std::min(kNames, columns() / 3);
  const std::string first = "  " + coloured(STDOUT_FILENO, kName, name);
  const std::size_t used = name.size() + 2;
  if (meaning.empty()) return first + "\n";
  const std::string gap = used + 2 > names ? "\n" + std::string(names, ' ') : std::string(names - used, ' ');
  return first + gap + wrapped(meaning, names, names) + "\n";
}

// CLI11 appends what a validator says to a type, as in "N:INT in [1 - 256]" and "WIRE:{fp32,bf16}".
std::string allowed(const std::string& said) {
  static const std::regex range(R"(.* in \[(.*) - (.*)\])"), choice(R"(\{(.*)\})");
  std::smatch part;
  if (std::regex_match(said, part, range)) return fmt::format("{} to {}", part[1].str(), part[2].str());
  if (std::regex_match(said, part, choice))
    return fmt::format("one of {}", fmt::join(CLI::detail::split(part[1], ','), ", "));
  return "";
}

// "N:INT in [1 - 256]"; empty for a flag.
std::string type_of(const CLI::Option& option) {
  const bool takes = option.get_type_size() != 0 && option.get_expected_max() != 0;
  return takes ? option.get_type_name() : "";
}

// A positional argument is called by its type, such as "RECIPE.toml".
std::string name_of(const CLI::Option& option) {
  const std::string type = type_of(option);
  return option.get_positional() ? type.substr(0, type.find(':')) : option.get_name();
}

std::string names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(name_of(*option));
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, ", "));
}

class Help : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return is_positional ? name_of(*option) : Formatter::make_option_name(option, false);
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string type = type_of(*option);
    const std::size_t colon = type.find(':');
    std::string name = make_option_name(option, is_positional);
    for (std::size_t at = 0; (at = name.find(",--", at)) != std::string::npos;) name.replace(at, 1, ", ");
    if (!is_positional && colon != 0 && !type.empty()) name += " " + type.substr(0, colon);
    std::vector<std::string> notes;
    if (const std::string range = allowed(colon == std::string::npos ? "" : type.substr(colon + 1));
        !range.empty())
      notes.push_back(range);
    if (!type.empty() && !option->get_default_str().empty() &&
        option->get_description().find("default") == std::string::npos)
      notes.push_back("default " + option->get_default_str());
    if (option->get_required()) notes.emplace_back("required");
    if (!option->get_needs().empty()) notes.push_back("with " + names_of(option->get_needs()));
    if (!option->get_excludes().empty()) notes.push_back("not with " + names_of(option->get_excludes()));
    std::string meaning = make_option_desc(option);
    if (!notes.empty()) meaning += fmt::format(" ({})", fmt::join(notes, "; "));
    return entry(name, meaning);
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    return entry(sub->get_name(), sub->get_description());
  }
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    std::string text = "\n" + coloured(STDOUT_FILENO, kBold, group + ":") + "\n";
    for (const CLI::Option* option : options) text += make_option(option, is_positional);
    return text;
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), 0, 0) + "\n\n";
  }
};

// The command that the command line names.
const CLI::App& named(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

// "starling train"
std::string path_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : path_of(*app.get_parent()) + " " + app.get_name();
}

// ", did you mean --optimizer.lr?"
std::string near_option(const CLI::App& at, const std::string& given) {
  std::vector<std::string> names, ends;  // ends: keys of a recipe without their section
  for (const CLI::Option* option : at.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
      if (name.ends_with("." + given.substr(std::min<std::size_t>(2, given.size()))))
        ends.push_back("--" + name);
    }
  }
  if (!ends.empty()) return fmt::format(", did you mean {}?", fmt::join(ends, " or "));
  return did_you_mean(given, names);
}

// The values that a validator has refused, in the words of recipes.
std::string refused_value(const std::string& said) {
  static const std::regex range(R"((--\S+): Value (.*) not in range (.*))"),
      choice(R"((--\S+): (.*) not in \{(.*)\})");
  std::smatch part;
  if (std::regex_match(said, part, range) && !parse_number<double>(part[2].str()))
    return fmt::format("{}: {} is no number from {}", part[1].str(), short_of(part[2].str()), part[3].str());
  if (std::regex_match(said, part, choice)) {
    const std::vector<std::string> known = CLI::detail::split(part[3], ',');
    return fmt::format("{}: {} is unknown{}, allowed is one of {}", part[1].str(), short_of(part[2].str()),
                       did_you_mean(part[2], known), fmt::join(known, ", "));
  }
  return said;
}

}  // namespace

bool refuses_colour() {
  const char* const said = std::getenv("NO_COLOR");
  return said != nullptr && *said != '\0';
}

void explain(CLI::App& app) {
  app.formatter(std::make_shared<Help>());
  if (!app.get_footer().empty())
    app.footer(coloured(STDOUT_FILENO, kBold, "Examples:") + "\n" + app.get_footer());
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) explain(*sub);
}

std::vector<std::string> read_arguments(int argc, char** argv) {
  std::vector<std::string> arguments(argv + std::min(1, argc), argv + argc);
  if (!arguments.empty() && arguments.front() == "help") {
    arguments.erase(arguments.begin());
    arguments.emplace_back("--help");
  }
  // CLI11 would take the argument behind "--data.dir=" for its value.
  std::vector<std::string> last_first;
  for (const std::string& argument : arguments) {
    const bool has_no_value = argument.starts_with("--") && argument.find('=') + 1 == argument.size();
    last_first.push_back(has_no_value ? argument.substr(0, argument.size() - 1) : argument);
    if (has_no_value) last_first.emplace_back();
  }
  std::ranges::reverse(last_first);
  return last_first;
}

bool names_no_command(const CLI::App& app) {
  const CLI::App& at = named(app);
  const std::vector<std::string> rest = at.remaining();
  return at.get_require_subcommand_min() > 0 && !rest.empty() && !rest.front().starts_with("-");
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& at = named(app);
  const std::string who =
      at.get_parent() == nullptr ? "" : path_of(at).substr(app.get_name().size() + 1) + ": ";
  const std::vector<std::string> rest = at.remaining();
  for (const std::string& extra : rest) {
    if (!extra.starts_with("-")) continue;
    const std::string name = extra.substr(0, extra.find('='));
    return fmt::format("{}unknown option '{}'{} ({} --help lists all)", who, name, near_option(at, name),
                       path_of(at));
  }
  if (at.get_require_subcommand_min() > 0) {
    std::vector<std::string> known;
    for (const CLI::App* command : at.get_subcommands(nullptr)) known.push_back(command->get_name());
    if (rest.empty())
      return fmt::format("{}a command is needed: {} ({} --help describes them)", who, fmt::join(known, ", "),
                         path_of(at));
    return fmt::format("{}unknown command '{}'{}: known are {}", who, rest.front(),
                       did_you_mean(rest.front(), known), fmt::join(known, ", "));
  }
  if (!rest.empty())
    return fmt::format("{}'{}' is one argument too many ({} --help shows all)", who, rest.front(),
                       path_of(at));
  return refused_value(error.what());
}

std::string error_prefix() { return coloured(STDERR_FILENO, kWrong, "starling:"); }

}  // namespace starling::cli
