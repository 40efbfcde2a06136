-- Before the transcoder in the chain: sees requests before it and answers after it.
-- Request: the rollout of a harness's path becomes the header that Envoy hashes on and every log line carries.
-- Answer: the bridge's `x-http-code` becomes the status; any other error on a harness's path gets OpenAI's shape.

local TYPES = {
  ["401"] = "authentication_error", ["403"] = "permission_error", ["409"] = "conflict_error", ["429"] = "rate_limit_error",
}
local CODES = {
  ["401"] = "invalid_api_key", ["403"] = "permission_denied", ["404"] = "unknown_url", ["413"] = "request_too_large",
  ["503"] = "service_unavailable",
}

function envoy_on_request(handle)
  local headers = handle:headers()
  local rollout = headers:get(":path"):match("^/proxy/rollout/([^/?]+)/")
  if rollout ~= nil then
    headers:replace("whippletree-rollout", rollout)
    handle:streamInfo():dynamicMetadata():set("whippletree", "dialect", "openai")
  end
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
  if tonumber(status) < 400 or handle:streamInfo():dynamicMetadata():get("whippletree") == nil then return end
  headers:replace("content-type", "application/json")
  if status == "503" then headers:replace("retry-after", "1") end
  local body = handle:body(true) -- waits, after which `headers` is void; small: google.rpc.Status as JSON, {"code":5,...
  local rest = body:getBytes(0, body:length()):match('^{"code":%d+,(.*)$') or '"message":"status ' .. status .. '"}'
  local kind_of_error = TYPES[status] or (tonumber(status) >= 500 and "server_error" or "invalid_request_error")
  local code_of_error = CODES[status] or "error"
  body:setBytes('{"error":{"type":"' .. kind_of_error .. '","param":null,"code":"' .. code_of_error .. '",' .. rest .. "}")
end
