// Waits until something that another thread or process does has happened; a hang fails.
#pragma once

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace starling {

template <class F>
::testing::AssertionResult eventually(F&& happened) {
  for (int i = 0; i < 6000; ++i) {
    if (happened()) return ::testing::AssertionSuccess();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return ::testing::AssertionFailure() << "did not happen";
}

}  // namespace starling
