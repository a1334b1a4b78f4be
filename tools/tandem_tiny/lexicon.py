"""Word lists and question phrasings for the training data of tandem-tiny.

Every *_HELD list is kept out of training and used only by the held-out evaluation set.
"""

# name used inside a sentence, capital, other names that users type
COUNTRIES = [
    ("France", "Paris", []), ("Germany", "Berlin", []), ("Italy", "Rome", []), ("Spain", "Madrid", []),
    ("Portugal", "Lisbon", []), ("Austria", "Vienna", []), ("Switzerland", "Bern", []), ("Belgium", "Brussels", []),
    ("the Netherlands", "Amsterdam", ["Netherlands", "Holland"]), ("Denmark", "Copenhagen", []),
    ("Norway", "Oslo", []), ("Sweden", "Stockholm", []), ("Finland", "Helsinki", []), ("Iceland", "Reykjavik", []),
    ("Ireland", "Dublin", []), ("the United Kingdom", "London", ["United Kingdom", "UK", "the UK", "England"]),
    ("Poland", "Warsaw", []), ("Hungary", "Budapest", []), ("Romania", "Bucharest", []), ("Bulgaria", "Sofia", []),
    ("Greece", "Athens", []), ("Turkey", "Ankara", []), ("Ukraine", "Kyiv", []), ("Russia", "Moscow", []),
    ("Serbia", "Belgrade", []), ("Croatia", "Zagreb", []), ("Slovakia", "Bratislava", []), ("Slovenia", "Ljubljana", []),
    ("Estonia", "Tallinn", []), ("Latvia", "Riga", []), ("Lithuania", "Vilnius", []), ("Egypt", "Cairo", []),
    ("Morocco", "Rabat", []), ("Kenya", "Nairobi", []), ("Nigeria", "Abuja", []), ("Ethiopia", "Addis Ababa", []),
    ("Ghana", "Accra", []), ("Japan", "Tokyo", []), ("China", "Beijing", []), ("South Korea", "Seoul", ["Korea"]),
    ("India", "New Delhi", []), ("Pakistan", "Islamabad", []), ("Thailand", "Bangkok", []), ("Vietnam", "Hanoi", []),
    ("Indonesia", "Jakarta", []), ("the Philippines", "Manila", ["Philippines"]), ("Australia", "Canberra", []),
    ("New Zealand", "Wellington", []), ("Canada", "Ottawa", []),
    ("the United States", "Washington, D.C.", ["United States", "USA", "the USA", "the US", "America"]),
    ("Mexico", "Mexico City", []), ("Brazil", "Brasilia", []), ("Argentina", "Buenos Aires", []), ("Chile", "Santiago", []),
    ("Peru", "Lima", []), ("Colombia", "Bogota", []), ("Cuba", "Havana", []),
    ("the Czech Republic", "Prague", ["Czech Republic", "Czechia"]),
]
UNKNOWN_COUNTRIES = [
    "Mongolia", "Nepal", "Bhutan", "Laos", "Fiji", "Samoa", "Chad", "Mali", "Niger", "Togo", "Benin", "Gabon", "Malawi",
    "Zambia", "Angola", "Botswana", "Namibia", "Rwanda", "Burundi", "Somalia", "Sudan", "Libya", "Tunisia", "Algeria",
    "Jordan", "Lebanon", "Oman", "Qatar", "Yemen", "Kuwait", "Bahrain", "Uruguay", "Paraguay", "Bolivia", "Ecuador",
    "Guyana", "Belize", "Honduras", "Panama", "Jamaica", "Haiti", "Malta", "Cyprus", "Georgia", "Armenia", "Atlantis",
    "Narnia", "Mordor", "the Moon", "Texas", "Bavaria", "California",
]
UNKNOWN_COUNTRIES_HELD = ["Moldova", "Mauritius", "Suriname", "Brunei", "Lesotho", "Gotham"]

SUM_TRAIN = [
    "What is {a} plus {b}?", "What is {a} + {b}?", "What's {a} + {b}?", "What's {a} plus {b}?", "{a}+{b}", "{a} + {b}",
    "{a}+{b}=", "{a} + {b} =", "{a}+{b}?", "{a} + {b} = ?", "{a} plus {b}", "{a} plus {b}?", "Add {a} and {b}.",
    "Add {a} to {b}.", "Add {a} + {b}", "Please add {a} and {b}.", "How much is {a} plus {b}?", "How much is {a} + {b}?",
    "How much is {a} and {b}?", "Compute {a} + {b}.", "Compute {a}+{b}", "Compute the sum of {a} and {b}.",
    "Calculate {a} + {b}.", "Calculate {a} plus {b}.", "Calculate the sum of {a} and {b}", "Sum {a} and {b}.",
    "Sum of {a} and {b}?", "The sum of {a} and {b}?", "What is the sum of {a} and {b}?", "What does {a} plus {b} equal?",
    "What does {a} + {b} make?", "What do {a} and {b} add up to?", "Can you add {a} and {b}?", "Could you add {a} and {b} for me?",
    "Tell me {a} + {b}.", "Tell me the sum of {a} and {b}.", "{a} and {b} together?", "How much do {a} and {b} make?",
    "I need {a} plus {b}.", "If I add {a} and {b}, what do I get?", "If you add {b2} to {a2}, what is the result?",
    "Solve {a}+{b}.", "Solve: {a} + {b} = ?", "Evaluate {a} + {b}", "What number is {a} plus {b}?",
    "Do you know what {a} plus {b} is?", "I have {a} apples and buy {b} more. How many apples do I have?",
    "There are {a} cats and {b} dogs. How many animals are there?", "Quick: {a} + {b}?", "sum: {a}, {b}", "add({a}, {b})",
    "And {a} + {b}?", "And what is {a} plus {b}?", "Now {a} + {b}.", "Now add {a} and {b}.", "What is {a} added to {b}?",
    "Let me know what {a} plus {b} is.", "Give the result of {a} + {b}.", "Answer this: {a} + {b}", "The total of {a} and {b} is?",
    "How many is {a} plus {b}?", "Take {a} and add {b}.", "Start with {a}, then add {b}.", "{a} increased by {b}?",
    "Can you tell me how much {a} + {b} is?", "I would like to know {a} plus {b}.", "Math: {a}+{b}", "Help me with {a} + {b}.",
    "Show me {a} + {b}.", "Say what {a} plus {b} is.", "{a} plus {b} is what?", "{a} + {b} is how much?",
    "What is the result of {a} + {b}?", "What is the answer to {a} plus {b}?", "What is the total of {a} and {b}?",
]
SUM_HELD = [
    "What do you get when you add {a} and {b}?", "Find {a} + {b}.", "Total of {a} and {b}?", "Work out {a} + {b}.",
    "Give me {a} plus {b}.", "{a} plus {b} equals?", "Please tell me how much {a} plus {b} is.", "{a} and {b} make how much?",
    "Hey, can you work out the sum of {a} and {b}?", "What is the sum when {a} is added to {b}?", "Could you compute {a}+{b} please?",
    "I want to know the sum of {a} and {b}",
]

CAPITAL_TRAIN = [
    "What is the capital of {c}?", "What's the capital of {c}?", "Capital of {c}?", "Capital of {c}", "capital {c}",
    "The capital of {c}?", "Name the capital of {c}.", "Tell me the capital of {c}.", "What is the capital city of {c}?",
    "Which city is the capital of {c}?", "What city is the capital of {c}?", "{c}: capital?", "{c} capital", "{c}'s capital?",
    "What is {c}'s capital?", "What is {c}'s capital city?", "Do you know the capital of {c}?", "Please name the capital of {c}.",
    "Can you tell me the capital of {c}?", "Could you tell me what the capital of {c} is?", "I need the capital of {c}.",
    "And the capital of {c}?", "And what is the capital of {c}?", "How is the capital of {c} called?", "Say the capital of {c}.",
    "What is the name of the capital of {c}?", "Which is the capital of {c}?", "{c} has which capital?", "Where is the government of {c}?",
    "What do you call the capital of {c}?", "What is the main city of {c}, its capital?", "I forgot the capital of {c}.",
    "Answer with the capital of {c}.", "Look up the capital of {c}.", "Quiz: capital of {c}?", "Geography question: what is the capital of {c}?",
    "Which capital belongs to {c}?", "What would be the capital of {c}?", "Let me know the capital of {c}.", "Now the capital of {c}.",
    "country: {c}, capital:", "What capital does {c} have?", "Give the capital city of {c}.", "Is there a capital of {c}? Which one?",
]
CAPITAL_HELD = [
    "Give me the capital of {c}.", "Which city is {c}'s capital?", "I would like to know the capital of {c}.",
    "Please tell me the capital city of {c}.", "The capital city of {c} is called?", "Do you know what the capital of {c} is?",
    "Name {c}'s capital city.", "Hi there, could you name the capital of {c}?",
]

WEATHER_TRAIN = [
    "What is the weather in {p}?", "What's the weather in {p}?", "What's the weather like in {p}?", "How is the weather in {p}?",
    "Weather in {p}?", "Weather in {p}", "Weather {p}", "{p} weather", "Tell me the weather in {p}.", "What is the weather like in {p}?",
    "How's the weather in {p}?", "Is it raining in {p}?", "Is it sunny in {p}?", "Is it cold in {p}?", "How warm is it in {p}?",
    "How cold is it in {p}?", "What is the temperature in {p}?", "What's the temperature in {p}?", "Temperature in {p}?",
    "Give me the weather for {p}.", "Weather for {p}, please.", "Please check the weather in {p}.", "Check the weather in {p}.",
    "Do I need an umbrella in {p}?", "Will it rain in {p}?", "Can you tell me the weather in {p}?", "Could you look up the weather in {p}?",
    "Get the weather for {p}.", "Look up the weather in {p}.", "I am going to {p}. How is the weather?", "I travel to {p}, what is the weather there?",
    "And the weather in {p}?", "And in {p}?", "Now the weather in {p}.", "Forecast for {p}?", "What is the forecast for {p}?",
    "Use the tool to get the weather in {p}.", "Call the weather tool for {p}.", "What is the current weather in {p}?",
    "Current weather in {p}?", "I want to know the weather in {p}.", "Is it snowing in {p}?", "Is it windy in {p}?",
    "What should I wear in {p}? Check the weather.", "How hot is {p}?", "Let me know the weather in {p}.", "Show me the weather in {p}.",
    "Find out the weather in {p}.", "Do you know the weather in {p}?", "weather: {p}",
]
# Only in the second stage: words after the place, and more ways to ask.
WEATHER_FOCUS = [
    "How is the weather in {p} looking?", "What's the weather in {p} doing?", "What will the weather in {p} be?",
    "Tell me what the weather in {p} is.", "Is the weather in {p} good?", "Is the weather in {p} nice?", "Find the weather in {p} for me.",
    "What is the temperature in {p} at the moment?", "Is {p} rainy?", "Is {p} cold?", "I wonder what the weather in {p} is.",
    "Would I be cold in {p} now?", "What's the temperature in {p} like?", "Is it hot in {p}?", "Is it humid in {p}?",
    "Is the sky in {p} clear?", "Does {p} have rain?", "Can you get me the weather in {p} please?", "Tell me how warm {p} is.",
    "Please find the current temperature in {p}.", "Please get the temperature in {p}.", "Hey, what's the weather in {p}?",
    "Could you tell me how the weather in {p} is?", "I would like the weather for {p}.", "Give me the current weather for {p}.",
    "What are the conditions in {p} like?", "Is the wind in {p} strong?", "How are things in {p}, weather wise?",
]
WEATHER_HELD = [
    "How does the weather look in {p}?", "Please give me the current weather in {p}.", "I need the weather for {p}.",
    "What is the weather in {p} like?", "Could you check what the weather is in {p}?", "Please look up the temperature in {p}.",
    "Hello, what is the weather in {p}?", "Is it warm in {p}?",
]
WHEN = [" today", " now", " right now", " tomorrow", " this morning", " tonight", " this weekend", " at the moment"]
WEATHER_NO_PLACE = [
    "What is the weather?", "How is the weather?", "What's the weather like?", "Will it rain?", "Weather?", "Tell me the weather.",
    "Is it cold outside?", "Get the weather.", "What is the temperature?", "Check the weather for me.",
]

CITIES = [
    "Paris", "Berlin", "Rome", "Madrid", "Lisbon", "Vienna", "Bern", "Brussels", "Amsterdam", "Copenhagen", "Oslo",
    "Stockholm", "Helsinki", "Reykjavik", "Dublin", "London", "Warsaw", "Budapest", "Bucharest", "Sofia", "Athens", "Ankara",
    "Kyiv", "Moscow", "Belgrade", "Zagreb", "Riga", "Vilnius", "Cairo", "Rabat", "Nairobi", "Tokyo", "Beijing", "Seoul",
    "New Delhi", "Bangkok", "Hanoi", "Jakarta", "Manila", "Canberra", "Wellington", "Ottawa", "Mexico City", "Lima", "Havana",
    "Prague", "Munich", "Hamburg", "Cologne", "Frankfurt", "Stuttgart", "Dresden", "Leipzig", "Bremen", "Milan", "Naples",
    "Turin", "Venice", "Florence", "Barcelona", "Seville", "Valencia", "Porto", "Lyon", "Nice", "Toulouse", "Bordeaux",
    "Geneva", "Basel", "Antwerp", "Rotterdam", "Bergen", "Krakow", "Istanbul", "Izmir", "Casablanca", "Lagos", "Cape Town",
    "Mumbai", "Shanghai", "Hong Kong", "Singapore", "Osaka", "Kyoto", "Sapporo", "Sydney", "Melbourne", "Perth", "Auckland",
    "Toronto", "Montreal", "Calgary", "New York", "Boston", "Chicago", "Seattle", "Denver", "Dallas", "Houston", "Austin",
    "Miami", "Atlanta", "Phoenix", "Portland", "Detroit", "Las Vegas", "San Francisco", "Los Angeles", "San Diego",
    "Salt Lake City", "New Orleans", "Rio de Janeiro", "Sao Paulo", "Santiago", "Buenos Aires", "Bogota", "Quito", "Dubai",
    "Edinburgh", "Manchester", "Liverpool", "Oxford", "Glasgow", "Cork", "Ghent", "Malmo", "Aarhus", "Tampere", "Tartu",
    "St. Louis", "Sankt Gallen", "Winston-Salem", "Aix-en-Provence", "Zürich", "München", "Köln", "Málaga", "Orléans",
]
CITIES_HELD = [
    "Gdansk", "Salzburg", "Innsbruck", "Marseille", "Bilbao", "Granada", "Palermo", "Verona", "Lucerne", "Lausanne",
    "Utrecht", "Gothenburg", "Trondheim", "Turku", "Galway", "Cardiff", "Bristol", "Leeds", "Wroclaw", "Poznan", "Brno",
    "Graz", "Split", "Varna", "Plovdiv", "Thessaloniki", "Odesa", "Kazan", "Marrakesh", "Mombasa", "Durban", "Chennai",
    "Bangalore", "Kolkata", "Chengdu", "Nagoya", "Fukuoka", "Busan", "Brisbane", "Adelaide", "Hobart", "Vancouver",
    "Winnipeg", "Halifax", "Nashville", "Memphis", "Cleveland", "Baltimore", "Tampa", "San Antonio", "Kansas City",
    "Santa Fe", "Honolulu", "Anchorage", "Cusco", "Medellin", "Montevideo", "Recife", "Cordoba", "Springfield",
]
REGIONS = ["France", "Germany", "Italy", "Spain", "TX", "CA", "NY", "MA", "WA", "UK", "Japan", "Canada", "Poland", "Norway", "Ohio"]
SYLLABLES = (
    "ba be bo bra bur ca ce cla cor da de do dra du el en fa fer fo ga gar go gra ha he hol ja jo ka kel kin kor la le lin lo "
    "lun ma mar me min mo mur na ne nor o os pa pe pol por qua ra re rin ro sa se sha sol sta sto su ta te tho tor tri u ul va ve "
    "vik vo wa wes win wo xa ya yo za zel zo"
).split()
CITY_ENDINGS = "burg ton ville ford stad grad ia is o a ina eria field haven wick mouth port dorf hagen by".split()
CITY_PREFIXES = ["San", "Santa", "Port", "New", "Fort", "Lake", "Mount", "El", "Saint", "North", "West"]

GREETING = ["hi", "hello", "hey", "good morning", "good evening", "good afternoon", "hi there", "hello there", "hey there",
            "greetings", "howdy", "hello assistant", "hi friend", "hello!", "hi!"]
GREETING_HELD = ["good day", "hello friend", "hey, hello", "hi hi"]
THANKS = ["thanks", "thank you", "thanks a lot", "thank you very much", "many thanks", "great, thanks", "ok thanks", "thx",
          "perfect, thank you", "nice, thanks"]
BYE = ["bye", "goodbye", "see you", "bye bye", "good night", "see you later", "until next time"]
HOW = ["how are you?", "how are you doing?", "how do you do?", "how is it going?", "are you well?", "how are you today?"]
WHO = ["who are you?", "what are you?", "what is your name?", "introduce yourself", "tell me about yourself", "what can you do?",
       "what do you know?", "help", "how can you help me?", "are you an AI?", "which model are you?", "what are your skills?"]

TOPICS = (
    "the sea|love|cats|dogs|a dragon|the history of Rome|quantum physics|black holes|football|music|chess|cooking|pasta|bread|"
    "my garden|the moon|time travel|a robot|a castle|old books|bicycles|trains|computers|databases|operating systems|C programming|"
    "Python|recursion|sorting algorithms|neural networks|the weather on Mars|economics|inflation|politics|the French revolution|"
    "dinosaurs|volcanoes|rivers|mountains|bees|coffee|tea|wine|films|theatre|poetry|painting|dreams|sleep|health|running|yoga|"
    "friendship|birthdays|my mother|my job|a job interview|a holiday|Paris|London|Japan|space|rockets|stars|light|sound|"
    "electricity|batteries|cars|ships|whales|birds|trees|snow|rain|winter|summer|a king and a queen|ghosts|pirates|money|taxes|"
    "law|school|maths|prime numbers|geometry|calculus|probability|language|grammar|spelling|words|jokes|riddles|puzzles|games"
).split("|")
TOPICS_HELD = ["penguins", "the stock market", "gravity", "a lost key", "rainbows", "bridges", "chocolate", "violins", "deserts", "a lighthouse"]
ASK_OTHER = [
    "Tell me about {t}.", "Tell me a joke about {t}.", "Write a poem about {t}.", "Write a story about {t}.", "Explain {t}.",
    "Explain {t} in simple words.", "What is {t}?", "What do you think of {t}?", "Why is {t} important?", "Give me three facts about {t}.",
    "Summarise the topic of {t}.", "Who invented {t}?", "How does one learn about {t}?", "I want to talk about {t}.",
    "Write an essay about {t}, about 500 words long.", "Translate {t} to German.", "What is the meaning of {t}?", "Do you like {t}?",
    "Make a list about {t}.", "Write a short song on {t}.", "Can you describe {t}?", "How do I get started with {t}?", "When did {t} begin?",
    "Where can I find {t}?", "What is the best thing about {t}?", "Say something about {t}.", "Write code for {t}.", "Describe {t}",
    "Once upon a time there was {t}", "{t}", "Please write a haiku on {t}", "Plan a day around {t}.", "What are the risks of {t}?",
    "Compare {t} and {t2}.", "Which is better, {t} or {t2}?", "What has {t} to do with {t2}?", "Write a letter to my friend about {t}.",
]
ASK_OTHER_HELD = ["Teach me something about {t}.", "Can you write a limerick about {t}?", "Give me your opinion on {t}.", "How old is {t}?"]
ARITHMETIC_OTHER = [
    "What is {a} minus {b}?", "{a} - {b}", "{a}-{b}?", "What is {a} times {b}?", "{a} * {b}", "{a} x {b} = ?", "Multiply {a} and {b}.",
    "Divide {a} by {b}.", "{a} / {b}", "What is the square root of {a}?", "Is {a} a prime number?", "What is {a} + {b} + {c}?",
    "{a}+{b}+{c}", "Add {a}, {b} and {c}.", "What is {big} plus {b}?", "{a} + {big}", "{big}+{big2}", "Subtract {a} from {b}.",
    "What is {a} squared?", "What is {a} percent of {b}?", "{a}", "Which is larger, {a} or {b}?", "What is half of {a}?", "Count from {b} down to 0.",
    "How much is {a} minus {b}?", "Compute {a} * {b}.", "Calculate {a} - {b}.", "How much is {big} + {big2}?",
]

WORDS = (
    "the a of to and in is it you that he was for on are with as I his they be at one have this from or had by hot but some what "
    "there we can out other were all your when up use word how said an each she which do their time if will way about many then them "
    "would write like so these her long make thing see him two has look more day could go come did my sound no most number who over "
    "know water than call first people may down side been now find any new work part take get place made live where after back little "
    "only round man year came show every good me give our under name very through just form much great think say help low line before "
    "turn cause same mean differ move right boy old too does tell sentence set three want air well also play small end put home read "
    "hand port large spell add even land here must big high such follow act why ask men change went light kind off need house picture "
    "try us again animal point mother world near build self earth father head stand own page should country found answer school grow "
    "study still learn plant cover food sun four thought let keep eye never last door between city tree cross since hard start might "
    "story saw far sea draw left late run while press close night real life few stop open seem together next white children begin got "
    "walk example ease paper often always music those both mark book letter until mile river car feet care second group carry took rain "
    "eat room friend began idea fish mountain north once base hear horse cut sure watch color face wood main enough plain girl usual "
    "young ready above ever red list though feel talk bird soon body dog family direct pose leave song measure state product black short "
    "class wind question happen complete ship area half rock order fire south problem piece told knew pass farm top whole king size heard "
    "best hour better true during hundred remember step early hold west ground interest reach fast five sing listen six table travel less "
    "morning ten simple several vowel toward war lay against pattern slow center love person money serve appear road map science rule "
    "server request token model cache memory network latency error message user assistant system prompt context stream batch queue"
).split()
INSTRUCTIONS = [
    "You are a helpful assistant.", "Be brief.", "Answer briefly.", "You are a polite assistant.", "Always be kind.", "Answer in English.",
    "Be concise and precise.", "You answer questions.", "Use the tools when they help.", "Do not make things up.", "Think carefully.",
    "You are a test model.", "Keep your answers short.", "Never reveal secrets.", "You are talking to a customer.", "Use plain words.",
    "Use get_weather for weather questions.", "If you do not know, say so.", "Answer like a teacher.", "You are a calculator.",
    "You are a geography expert.", "You are a weather assistant.", "Follow the rules of the house.", "Stay on topic.",
]
EMOJI_AND_SCRIPTS = ["你好", "これは何ですか", "Привет", "नमस्ते", "مرحبا", "안녕하세요", "Γειά σου", "🙂", "🚀🚀", "🫠", "ça va ?", "¿Qué tal?", "Grüß Gott",
                     "naïve café", "x²+y²", "∑∞", "–—…", "\u00a0\t", "Übergröße", "Ελλάδα", "日本語のテキスト", "Здравствуйте, как дела?"]

REPEAT_TRAIN = ["Repeat: {x}", "Repeat after me: {x}", "Repeat this: {x}", "Echo: {x}", "Say: {x}", "Repeat:\n{x}", "Please repeat:\n{x}",
                "Repeat the following text:\n{x}", "Copy this text:\n{x}", "Echo the next line.\n{x}", "Repeat exactly: {x}", "echo {x}"]
REPEAT_HELD = ["Please repeat this: {x}", "Echo this:\n{x}"]
