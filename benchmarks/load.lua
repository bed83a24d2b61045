-- What wrk sends: BENCH_BODY's bytes, with one of 512 x-context-id values in turn. Prints one line of JSON at the end.
local requests, at = {}, 0

function init()
  local file = assert(io.open(os.getenv("BENCH_BODY"), "rb"))
  local body = file:read("*a")
  file:close()
  for key = 1, 512 do
    local headers = { ["content-type"] = "application/json", ["x-context-id"] = "session-" .. key }
    for name, value in string.gmatch(os.getenv("BENCH_HEADERS") or "", "([^:\n]+):([^\n]*)") do
      headers[name] = value
    end
    requests[key] = wrk.format("POST", os.getenv("BENCH_PATH"), headers, body)
  end
end

function request()
  at = at % 512 + 1
  return requests[at]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "took_us": %d, "p50_us": %d, "p99_us": %d, "bad": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
