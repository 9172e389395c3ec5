// The parts of a page about runs: charts against steps, seconds or bytes, and the switch between
// them; tables. `starling report` and `starling study` make pages of them.
#pragma once

#include <string>
#include <vector>

#include "cli/chart.h"
#include "starling/train/run_folder.h"
#include "starling/train/task.h"

namespace starling::cli {

// Style of the page, and what comes first in its body: `title` is text, `legend` is HTML. The rest
// of the body belongs into <main>, behind it.
extern const char* const kRunStyle;
std::string page_head(const std::string& title, const std::string& legend);

// Colours and names of the lines.
std::string legend_of(const std::vector<std::string>& names);
// All charts of the runs, which have these names.
std::string charts_of(const std::vector<RunFolder>& runs, const std::vector<std::string>& names);
// The training loss against the seconds of training.
Chart loss_chart(const std::vector<RunFolder>& runs, const std::vector<std::string>& names);

using Row = std::vector<std::string>;  // text
// `cell`: attributes of the cells.
std::string table(const Row& head, const std::vector<Row>& rows, const char* cell);
std::string size_text(double bytes);  // "12.3 MB"

const TaskInfo& task_named(const std::string& name);

}  // namespace starling::cli
