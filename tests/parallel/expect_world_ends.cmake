# cmake -DCOMMAND="mpirun;..." -DMESSAGE=REGEX -P expect_world_ends.cmake: the world must end by itself within 30 s, with a
# non-zero code and the message (the tests' own waits are 60 s, so a world that hangs cannot pass).
execute_process(COMMAND ${COMMAND} TIMEOUT 30 RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(result MATCHES "timeout" OR result EQUAL 0)
    message(FATAL_ERROR "expected a non-zero exit within 30 s, found '${result}'")
endif()
if(NOT output MATCHES "${MESSAGE}")
    message(FATAL_ERROR "expected a message that matches '${MESSAGE}'")
endif()
