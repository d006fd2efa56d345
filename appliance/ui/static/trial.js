// The prompt box: the answer as it streams, the time to its first token, then where the time went.
"use strict";

document.getElementById("trial")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const [answer, times, explained, problem] = ["answer", "times", "explained", "problem"].map((name) => document.getElementById(`trial-${name}`));
  const button = form.querySelector("button");
  const began = performance.now();
  const since = () => `${Math.round(performance.now() - began)} ms`;
  problem.replaceChildren();
  explained.replaceChildren();
  answer.textContent = "";
  answer.hidden = false;
  times.textContent = "waiting for the first token";
  button.disabled = true;
  try {
    const body = new URLSearchParams(new FormData(form));
    const response = await fetch(`${form.action}/stream`, { method: "POST", body, headers: { accept: "text/event-stream" } });
    if (!response.ok) throw new Error(await reasonOf(response));
    let first = "";
    for await (const frame of frames(response.body)) {
      if (frame.error) throw new Error(frame.error.message);
      const text = frame.choices?.[0]?.delta?.content;
      if (!text) continue;
      first ||= since();
      answer.append(text);
      times.textContent = `first token after ${first}`;
    }
    times.textContent = `first token after ${first}, all after ${since()}`;
    const piece = await fetch(`/ui/requests/${response.headers.get("x-request-id")}/timeline`);
    if (piece.ok) explained.innerHTML = await piece.text();
  } catch (error) {
    const line = document.createElement("p");
    line.className = "problem";
    line.role = "alert";
    line.textContent = error.message;
    problem.append(line);
    times.textContent = "";
  } finally {
    button.disabled = false;
  }
});

async function reasonOf(response) {
  if (response.headers.get("content-type")?.startsWith("application/json")) return (await response.json()).error.message;
  return response.redirected || response.status === 401 ? "The session has ended: load the page again." : `The server answered ${response.status}.`;
}

async function* frames(stream) {
  let rest = "";
  for await (const chunk of stream.pipeThrough(new TextDecoderStream())) {
    const events = (rest + chunk).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
