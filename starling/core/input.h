// Exit code 2 of the command says: the command line, or an input that it names, is wrong. Exit code
// 1 says: the run has failed. Readers of files throw Error, because they do not know which it is.
#pragma once

#include "starling/core/error.h"

namespace starling {

// Returns what `read` returns, which reads an input that the user has named: a checkpoint, a model,
// a data set. It throws UsageError in place of Error, with the same message.
template <class Read>
decltype(auto) named_input(const Read& read) {
  try {
    return read();
  } catch (const UsageError&) {
    throw;
  } catch (const Error& wrong) {
    throw UsageError(wrong.what());
  }
}

}  // namespace starling
