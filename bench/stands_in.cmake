# cmake -DPROGRAM=.. -DPAGE=.. -P stands_in.cmake: fails unless the page contains the program's
# output.
execute_process(COMMAND "${PROGRAM}" OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
file(READ "${PAGE}" page)
string(FIND "${page}" "${printed}" place)
if(place EQUAL -1)
  message(FATAL_ERROR "${PAGE} does not have what ${PROGRAM} prints:\n${printed}")
endif()
