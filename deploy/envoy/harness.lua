-- Before the transcoder in the chain: sees requests before it and answers after it.
-- Request: rollout and attempt of a harness's path become headers, which Envoy hashes on and every log line and trace
-- carries; its dialect is noted. What stands behind `?` is taken away.
-- Answer: the bridge's `x-http-code` becomes the status; any other error on a harness's path gets the dialect's shape.
-- What Envoy refuses before its filters run comes by no filter: listeners.yaml has the shapes of those (local_reply_config).

local OPENAI = {
  types = {
    ["401"] = "authentication_error", ["403"] = "permission_error", ["409"] = "conflict_error",
    ["429"] = "rate_limit_error",
  },
  client = "invalid_request_error", server = "server_error",
  form = '{"error":{"type":"%s","param":null,"code":"%s","message":%s}}',
}
local ANTHROPIC = {
  types = {
    ["401"] = "authentication_error", ["403"] = "permission_error", ["404"] = "not_found_error",
    ["413"] = "request_too_large", ["429"] = "rate_limit_error", ["503"] = "overloaded_error", ["504"] = "timeout_error",
  },
  client = "invalid_request_error", server = "api_error",
  form = '{"type":"error","error":{"type":"%s","details":{"error_code":"%s"},"message":%s}}',
}
local SHAPES = { openai = OPENAI, anthropic = ANTHROPIC }
local CODES = {
  ["401"] = "invalid_api_key", ["403"] = "permission_denied", ["404"] = "unknown_url", ["408"] = "request_timeout",
  ["413"] = "request_too_large", ["431"] = "headers_too_large", ["503"] = "service_unavailable", ["504"] = "timeout",
}

-- The message of a google.rpc.Status in JSON, quoted as it is there.
local function message_of(text)
  local from, to = text:gsub("\\.", ".."):find('"message":"[^"]*"') -- escapes are masked at their length
  return from ~= nil and text:sub(from + #'"message":', to) or nil
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local path, query = headers:get(":path"):match("^([^?]*)(.*)")
  local dialect = path:match("^/(%a+)/")
  local rollout, rest = path:match("^/proxy/rollout/([^/]+)/(.*)")
  if rollout ~= nil then
    headers:replace("whippletree-rollout", rollout)
    headers:replace("whippletree-attempt", rest:match("^attempt/([^/]*)") or "")
    dialect = rest:match("^attempt/[^/]*/mode/[^/]*/(%a+)")
    if SHAPES[dialect] == nil then dialect = "openai" end
  elseif SHAPES[dialect] ~= nil then
    headers:remove("whippletree-rollout") -- the token says it, not the harness
  end
  if query ~= "" and SHAPES[dialect] ~= nil then
    headers:replace(":path", path) -- the path alone says rollout, attempt and mode
  end
  if headers:get(":method") == "HEAD" then return end -- its answer must not get a body
  if SHAPES[dialect] ~= nil then handle:streamInfo():dynamicMetadata():set("whippletree", "dialect", dialect) end
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local kind = headers:get("content-type")
  if kind ~= nil and kind:sub(1, 16) == "application/grpc" then return end -- a real gRPC or gRPC-Web client
  local code = headers:get("x-http-code")
  if code ~= nil then -- the bridge sent a whole error body: only the status is missing
    headers:replace(":status", code)
    headers:remove("x-http-code")
    return
  end
  local status = headers:get(":status")
  local noted = handle:streamInfo():dynamicMetadata():get("whippletree")
  if tonumber(status) < 400 or noted == nil then return end
  local shape = SHAPES[noted["dialect"]]
  headers:replace("content-type", "application/json")
  if status == "503" then headers:replace("retry-after", "1") end
  local body = handle:body(true) -- waits, after which `headers` is void; small: google.rpc.Status as JSON
  local told = message_of(body:getBytes(0, body:length())) or '"status ' .. status .. '"'
  local type_of_error = shape.types[status] or (tonumber(status) >= 500 and shape.server or shape.client)
  body:setBytes(shape.form:format(type_of_error, CODES[status] or "error", told))
end
